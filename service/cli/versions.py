"""Which versions there are: of this command, and of the service that answers."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from service.cli.connection import connect
from service.cli.failures import CommandError
from service.cli.options import Form
from service.cli.output import facts, show
from service.client import ClientError
from service.version import service_version


def tell_versions(url: str | None, home: Path | None, form: Form) -> None:
    """A service that does not answer is no fault here."""
    found: dict[str, Any] = {"client": service_version(), "python": platform.python_version(), "server": None}
    try:
        with connect(url, home) as client:
            found["server"] = client.get("/version")
    except (ClientError, CommandError):
        pass
    server = found["server"]
    shown = ", ".join(f"{k} {v}" for k, v in server.items()) if server else "does not answer"
    show(form, found, facts([("concertina", found["client"]), ("python", found["python"]), ("service", shown)]))

"""Checks of what the settings name outside this machine, or its home: database, storage, Ray. No secret is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from service.cli.findings import Finding, run_apart
from service.settings import Settings, environment
from service.supervise.ray_head import foreign_ray_environment
from service.supervise.serve import child_environment
from service.supervise.supervisor import Mark
from workers.secrets import MIN_CHARS, Secrets

LIMIT_S = 30.0


def check_database(settings: Settings) -> Finding:
    """A configured database answers and fits this version; one in the home that is not there yet will be made."""
    file = settings.database_file
    if file is not None and not file.exists():
        return Finding(Mark.OK, "database", f"{file} will be made")
    where = str(file) if file is not None else _without_user(settings.database_url)
    remedy = "see that it runs and can be reached from here, and that user, password and name in the URL are right"
    return _looked(settings, "database", where, remedy)


def check_storage(settings: Settings) -> Finding:
    """Configured storage can be written and read; a folder in the home is made with it."""
    folder = settings.storage_folder
    if settings.storage is None:
        return Finding(Mark.OK, "storage", f"{settings.storage_url}, in the home directory")
    if folder is not None and not folder.exists():
        return Finding(Mark.OK, "storage", f"{folder} will be made")
    remedy = "see that it is there (mount, bucket), that it may be written, and that storage_options has the right keys"
    return _looked(settings, "storage", settings.storage_url, remedy)


def check_cluster(settings: Settings) -> Finding:
    """The Ray to attach to answers, is of our version, takes our token and has a node here."""
    remedy = (
        "see that its head runs and its port can be reached from here, that it has the version of Ray and Python that "
        "this environment has, and that RAY_AUTH_TOKEN_PATH names its token"
    )
    return _looked(settings, "ray_link", str(settings.ray_address), remedy)


def _looked(settings: Settings, probe: str, where: str, remedy: str) -> Finding:
    about = {"ray_link": "cluster"}.get(probe, probe)
    variables = foreign_ray_environment(child_environment(settings, environment()))
    seen, complaint = run_apart(["-m", f"service.probes.{probe}"], LIMIT_S, variables)
    found = json.loads(seen.splitlines()[-1]) if seen else {"seen": "", "why": complaint or "it said nothing"}
    hidden = Secrets(tuple(sorted(_secrets(settings), key=len, reverse=True)))
    if found["why"]:
        return Finding(Mark.FAIL, about, hidden.text(f"{where}: {found['why']}"), remedy)
    return Finding(Mark.OK, about, hidden.text(f"{where}: {found['seen']}"))


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme.partition('+')[0]}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _secrets(settings: Settings) -> Iterator[str]:
    """Whatever a library may repeat in its complaint."""
    password = urlsplit(settings.database_url).password
    if password:
        yield from {password, unquote(password)}
    # An address among them is what a complaint is good for.
    yield from (v for v in _texts(settings.storage_options) if len(v) >= MIN_CHARS and not v.startswith("http"))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)

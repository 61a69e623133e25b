"""Times as the REST interface shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def rfc3339(time_s: float) -> str: ...
@overload
def rfc3339(time_s: None) -> None: ...


def rfc3339(time_s: float | None) -> str | None:
    """Unix seconds as RFC 3339 in UTC with milliseconds, such as ``2026-11-20T09:30:00.250Z``."""
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"  # without its +00:00

"""Which version this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def service_version() -> str:
    """The installed version; of a source folder that was never installed, ``0+unknown``."""
    try:
        return version("concertina")
    except PackageNotFoundError:
        return "0+unknown"

"""The forms of the addresses among the settings: of storage, of a database, of a Ray. Nothing is reached for.

Every function raises ValueError with what was seen and what to write.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from workers.storage_urls import local_folder, unusable

SQLITE = "sqlite:///"
_POSTGRES = "postgresql+asyncpg://"
_ALMOST_A_URL = re.compile(r"(?:([A-Za-z][\w+.-]*):|(s3a?|gs|gcs|az|abfss?|file)//)(.*)")
_MAX_PORT = 65535


def storage_place(value: str) -> str:
    """The absolute path of a folder, or the URL of other storage without a slash at its end."""
    folder = local_folder(value)
    if folder is None:
        if why := unusable(value):
            raise ValueError(f"{value!r} cannot be used: {why}")
        if not value.partition("://")[2].strip("/"):
            raise ValueError(f"{value!r} names no place; write {value.partition('://')[0]}://BUCKET/PATH")
        return value.rstrip("/")
    if "://" in value and urlsplit(value).netloc not in ("", "localhost"):
        raise ValueError(f"{value!r} names a machine; write file:///PATH, or mount it and give its folder")
    if "://" not in value and (found := _ALMOST_A_URL.fullmatch(value)):
        scheme = found[1] or found[2]
        meant = f"{scheme}://{'/' if scheme == 'file' else ''}{found[3].lstrip('/')}"
        raise ValueError(f"{value!r} is neither a URL nor plainly a folder; write {meant}, or ./{value}")
    if not folder:
        raise ValueError(f"{value!r} names no folder; write its path, or file:///PATH")
    return os.path.abspath(Path(folder).expanduser())


def database_address(value: str) -> str:
    """The URL of a database; that of a SQLite file with its absolute path."""
    if value.startswith(SQLITE):
        return _sqlite_address(value)
    if not value.startswith(_POSTGRES):
        raise ValueError(
            f"{value.split(':', 1)[0]!r} is no database this service knows; "
            "use sqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME"
        )
    if importlib.util.find_spec("asyncpg") is None:
        raise ValueError("NOT_AVAILABLE: PostgreSQL needs its driver; pip install 'concertina[postgres]'")
    if not urlsplit(value).path.strip("/"):
        raise ValueError("the URL names no database; use postgresql+asyncpg://USER:PASSWORD@HOST/NAME")
    return value


def _sqlite_address(value: str) -> str:
    name = value.removeprefix(SQLITE)
    if name in ("", ":memory:"):
        raise ValueError(f"{value!r} names no file that several processes could use; write {SQLITE}/PATH/FILE")
    file = Path(os.path.abspath(Path(name).expanduser()))
    if name.endswith("/") or file.is_dir():
        raise ValueError(f"{value!r} is a folder; name a file in it: {SQLITE}{file}/concertina.db")
    return f"{SQLITE}{file}"


def ray_address(value: str) -> str:
    """HOST:PORT of a Ray head."""
    found = re.fullmatch(r"[^\s:/]+:(\d{1,5})", value, flags=re.ASCII)
    if found is None or not 1 <= int(found[1]) <= _MAX_PORT:
        raise ValueError(f"{value!r} is not HOST:PORT of a Ray head, such as 10.0.0.5:6379")
    return value

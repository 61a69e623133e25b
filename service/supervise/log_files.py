"""Logs that children append to by a descriptor of their own: opened, kept within a bound, read for a person."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 20 * 2**20
MAX_BYTES_READ = 16_384


def open_log(file: Path) -> int:
    """A descriptor to append to a log of bounded size. The caller closes it."""
    bound_log(file)
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def bound_log(file: Path) -> None:
    """Begin a log anew that has grown past its bound; its newest part is kept beside it, as ``.1``.

    Copied and emptied instead of renamed: its writers keep their descriptor, to which native code that dies writes
    as well. A line that is written in between is lost. On a full disk the older part is given up for the bound.
    """
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return
    if size <= MAX_LOG_BYTES:
        return
    older = file.with_name(file.name + ".1")
    try:
        with file.open("rb") as source, open(older, "wb", opener=_private) as target:
            source.seek(size - MAX_LOG_BYTES)
            shutil.copyfileobj(source, target)
    except OSError:
        older.unlink(missing_ok=True)
    os.truncate(file, 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def last_lines(file: Path, count: int, begin: int = 0) -> list[str]:
    """The end of a log, for a person to read; empty where there is none.

    Nothing from before the byte ``begin``, unless the log was begun anew since.
    """
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(begin if begin <= size else 0, size - MAX_BYTES_READ))
            return stream.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []

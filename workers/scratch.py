"""What a node keeps for the workers of one installation, and how it goes again.

    bundles/<sha256>/        extracted code
    deps/<key>/, deps/cache/ installed dependencies, and what the installer fetched
    logs/<job>/              what workers wrote
    output/<job>/            what their code wrote, until it is brought to storage that is no folder
    <any of these>.lock      shared by all who use it, held alone by who makes or removes it; as old as the last use
    <any of these>.part      is being made or removed; what a killed process left so

A worker shares the locks of what it uses until its process ends. So what is not locked is used by nobody, and every
worker can tidy up after those before it, on nodes that the service never sees.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.node_lock import node_lock, share_lock, try_lock

BUNDLES, DEPENDENCIES, LOGS, OUTPUT = "bundles", "deps", "logs", "output"
SIZED = (BUNDLES, DEPENDENCIES)
"""What may be made anew at any time, and so may go for its size; the others go by age alone."""

LOCK, PART = ".lock", ".part"
SWEEP_EVERY_S = 600.0
OCCUPY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long what nobody uses is kept, and how many bytes of bundles and dependencies at most."""

    keep_s: float = 7 * 86400.0
    max_bytes: int = 20 * 10**9


def keep_in_use(
    folder: Path, make: Callable[[int], None], what: str, timeout_s: float, report: Callable[[str], None]
) -> int:
    """Have a shared folder there, and keep it there until the descriptor that this gives is closed.

    The first of a node calls ``make``, with the descriptor of the lock; others wait for it. Raises TimeoutError.
    """
    lock = folder.with_suffix(LOCK)
    while True:
        held = share_lock(lock, what, timeout_s, report)
        if folder.is_dir():
            os.utime(held)
            return held
        os.close(held)
        with node_lock(lock, what, timeout_s, report) as descriptor:
            if not folder.is_dir():
                make(descriptor)
                os.truncate(descriptor, 0)  # it has another size now


_entered: dict[Path, int] = {}
_occupied: list[int] = []
"""Descriptors of locks that this process holds: the end of the process is what ends their use, however it comes."""


def enter(
    folder: Path, make: Callable[[int], None], what: str, timeout_s: float, report: Callable[[str], None]
) -> None:
    """As ``keep_in_use``, until this process ends; it may enter a folder again. Raises TimeoutError."""
    if (held := _entered.pop(folder, None)) is not None:
        if not folder.is_dir():
            os.close(held)  # who makes it again must have the lock alone
        else:
            os.utime(held)
            _entered[folder] = held
            return
    _entered[folder] = keep_in_use(folder, make, what, timeout_s, report)


def occupy(scratch: Path, job_id: str) -> None:
    """Keep the logs and outputs of a job on this node until this process ends, or occupies another job's.

    Raises TimeoutError.
    """
    held = [
        share_lock(scratch / kind / f"{job_id}{LOCK}", "tidying up", OCCUPY_S, lambda _: None)
        for kind in (LOGS, OUTPUT)
    ]
    for descriptor in held:
        os.utime(descriptor)
    for descriptor in _occupied:
        os.close(descriptor)
    _occupied[:] = held


def sweep(scratch: Path, bounds: Bounds, now_s: float, every_s: float = SWEEP_EVERY_S) -> list[str]:
    """Remove what no process uses: what is older than the bounds say, then the longest unused beyond their size.

    At most one process of a node does so at a time, and nothing is done where one has within ``every_s``. ``now_s``
    is Unix seconds. What was removed; what cannot be is left for the next.
    """
    turn = try_lock(scratch / f"sweep{LOCK}") if scratch.is_dir() else None
    if turn is None:
        return []
    try:
        if now_s - os.fstat(turn).st_mtime < every_s:
            return []
        os.utime(turn)
        return _swept(scratch, bounds, now_s)
    finally:
        os.close(turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    folder: Path
    used_s: float
    size_bytes: int
    is_in_use: bool


def _swept(scratch: Path, bounds: Bounds, now_s: float) -> list[str]:
    found = [entry for folder in _folders(scratch) if (entry := _look_at(folder)) is not None]
    excess_bytes = sum(entry.size_bytes for entry in found) - bounds.max_bytes
    removed = []
    for entry in sorted(found, key=lambda entry: entry.used_s):
        is_for_size = excess_bytes > 0 and entry.size_bytes > 0
        is_old = now_s - entry.used_s > bounds.keep_s
        if not entry.is_in_use and (is_old or is_for_size) and _is_removed(entry):
            excess_bytes -= entry.size_bytes
            removed.append(str(entry.folder))
    return removed


def _folders(scratch: Path) -> Iterator[Path]:
    for kind in (BUNDLES, DEPENDENCIES, LOGS, OUTPUT):
        with suppress(FileNotFoundError):
            yield from sorted({path.with_suffix("") for path in (scratch / kind).iterdir()})


def _look_at(folder: Path) -> _Entry | None:
    """One folder; what a killed process left half made or half removed beside it goes at once."""
    lock = folder.with_suffix(LOCK)
    try:
        alone = try_lock(lock)
        if alone is None:
            os.utime(lock)  # its use has not ended yet
        else:
            shutil.rmtree(folder.with_suffix(PART), ignore_errors=True)
            os.close(alone)
        size_bytes = _size_of(folder, lock) if folder.parent.name in SIZED else 0
        used_s = lock.stat().st_mtime
    except OSError:
        return None
    return _Entry(folder=folder, used_s=used_s, size_bytes=size_bytes, is_in_use=alone is None)


def _size_of(folder: Path, lock: Path) -> int:
    """Of what does not change any more: counted once, and noted in its lock file."""
    used = lock.stat()
    if not folder.is_dir():
        return 0
    with suppress(ValueError):
        return int(lock.read_text())
    found = [place for place, _, _ in os.walk(folder)]
    size_bytes = sum(entry.stat(follow_symlinks=False).st_size for place in found for entry in os.scandir(place))
    lock.write_text(str(size_bytes))
    os.utime(lock, (used.st_atime, used.st_mtime))
    return size_bytes


def _is_removed(entry: _Entry) -> bool:
    lock, part = entry.folder.with_suffix(LOCK), entry.folder.with_suffix(PART)
    alone = try_lock(lock)
    if alone is None:
        return False
    try:
        if os.fstat(alone).st_mtime > entry.used_s:
            return False  # somebody has used it meanwhile
        with suppress(FileNotFoundError):
            # In one step, as nobody must find a half of it under its name.
            entry.folder.rename(part)
        shutil.rmtree(part, ignore_errors=True)
        lock.unlink(missing_ok=True)
        return True
    except OSError:
        return False
    finally:
        os.close(alone)


def tidy(scratch: Path, bounds: Bounds) -> None:
    """``sweep`` as a worker does it, beside its training: storage that fails is no reason to end that."""
    with suppress(OSError):
        sweep(scratch, bounds, time.time())

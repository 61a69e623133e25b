"""Disks that fail: at a chosen operation, for good or for a while, and with what a cut of the power takes along."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from workers.local_storage import FileCalls


class PowerCut(BaseException):
    """The process is gone: nothing that it would still do happens."""


class CutCalls(FileCalls):
    """Counts operations and cuts the power at the ``at``-th (None: never); of a write its first ``share`` is done then.

    What was not synced by then is lost: names come back as they were, and files keep their first ``share``.
    """

    def __init__(self, at: int | None = None, share: float = 0.5) -> None:
        self.at, self.share, self.num_done = at, share, 0
        self._paths: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self._renames: list[tuple[Path, Path, bytes | None]] = []

    def create(self, path: Path) -> int:
        self._count()
        descriptor = super().create(path)
        self._paths[descriptor] = path
        self._unsynced.add(path)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        if self._is_next():
            os.write(descriptor, data[: int(len(data) * self.share)])
        self._count()
        return super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._count()
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._unsynced.discard(path)
        self._renames = [rename for rename in self._renames if rename[1].parent != path]

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        before = target.read_bytes() if target.exists() else None
        super().rename(source, target)
        if source in self._unsynced:
            self._unsynced.add(target)
        self._renames.append((source, target, before))

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def _is_next(self) -> bool:
        return self.at is not None and self.num_done + 1 == self.at

    def _count(self) -> None:
        self.num_done += 1
        if self.at is None or self.num_done < self.at:
            return
        if self.num_done == self.at:
            self._lose()
        raise PowerCut

    def _lose(self) -> None:
        for source, target, before in reversed(self._renames):
            target.rename(source)
            if before is not None:
                target.write_bytes(before)
        for path in self._unsynced:
            if path.exists():
                os.truncate(path, int(path.stat().st_size * self.share))


class FullDisk(FileCalls):
    """Has room for ``room_bytes`` more, told by whoever frees some; None is enough for everything."""

    def __init__(self) -> None:
        self.room_bytes: int | None = None

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.room_bytes is None:
            return super().write(descriptor, data)
        if self.room_bytes == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_written = super().write(descriptor, data[: self.room_bytes])
        self.room_bytes -= num_written
        return num_written

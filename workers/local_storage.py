"""Storage in a folder: objects are files of its owner's, written beside their place and renamed into it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from workers.storage import MARK, PART_SUFFIX, Data, Found, StorageAwayError

_CHUNK_BYTES = 16 * 2**20


class FileCalls:
    """Every call by which local storage changes something; tests put others in place that fail."""

    def create(self, path: Path) -> int:
        """A new file, open for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the data; the answer is how many bytes."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Wait until a file, or the names in a folder, are on the disk."""
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of whatever has it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file. Raises FileNotFoundError."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """A folder in one that exists."""
        path.mkdir(mode=0o700, exist_ok=True)


class LocalStorage:
    """A folder ``place``; see ``Storage``, and ``open_storage`` of ``root``."""

    def __init__(self, place: str | Path, calls: FileCalls | None = None, root: str | Path | None = None) -> None:
        self._root = Path(place)
        self._calls = calls or FileCalls()
        self._marked = None if root is None else Path(root)

    @property
    def url(self) -> str:
        return str(self._root)

    def write(self, key: str, parts: Iterable[Data]) -> int:
        target = self._root / key
        if not target.parent.is_dir():
            self._check_mark()
            self._make_folder(target.parent)
        part = target.with_name(f"{target.name}.{secrets.token_hex(4)}{PART_SUFFIX}")
        try:
            size_bytes = self._write_part(part, parts)
            self._calls.rename(part, target)
            self._sync(target.parent)
        except BaseException:
            with suppress(OSError):
                self._calls.unlink(part)
            raise
        return size_bytes

    def open(self, key: str) -> BinaryIO:
        return (self._root / key).open("rb")

    def size(self, key: str) -> int | None:
        path = self._root / key
        try:
            if path.is_file():
                return path.stat().st_size
        except FileNotFoundError:
            pass
        self._check_mark()
        return None

    def keys(self, folder: str = "") -> list[str]:
        found = []
        for place, _, names in os.walk(self._root / folder, onerror=self._missing):
            prefix = Path(place).relative_to(self._root)
            found += [(prefix / name).as_posix() for name in names]
        return sorted(found)

    def listed(self) -> list[Found]:
        found = []
        for key in self.keys():
            with suppress(FileNotFoundError):
                status = (self._root / key).stat()
                found.append(Found(key=key, size_bytes=status.st_size, modified_s=status.st_mtime))
        return found

    def folders(self, folder: str = "") -> list[str]:
        try:
            found = list(os.scandir(self._root / folder))
        except FileNotFoundError:
            self._check_mark()
            return []
        return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._calls.unlink(self._root / key)

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root)

    def _missing(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error
        self._check_mark()

    def _check_mark(self) -> None:
        if self._marked is not None:
            check_mark(self._marked)

    def _write_part(self, part: Path, parts: Iterable[Data]) -> int:
        descriptor = self._calls.create(part)
        size_bytes = 0
        try:
            for data in parts:
                rest = memoryview(data).cast("B")
                while rest:
                    # In chunks: one call takes 2 GiB at most, and a slow disk should not hold back others for long.
                    num_written = self._calls.write(descriptor, rest[:_CHUNK_BYTES])
                    rest = rest[num_written:]
                    size_bytes += num_written
            self._calls.fsync(descriptor)
        finally:
            os.close(descriptor)
        return size_bytes

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        self._calls.make_folder(folder)
        self._sync(folder.parent)

    def _sync(self, folder: Path) -> None:
        """Make the names in a folder last."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._calls.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_mark(root: Path) -> None:
    """Raises StorageAwayError where a folder that should be an installation's storage does not bear its mark."""
    if (root / MARK).is_file():
        return
    seen = "is there without" if root.is_dir() else "is not there, nor"
    raise StorageAwayError(
        f"the storage {root} {seen} its file {MARK!r}: mount its disk, or bring it back, and this goes on by itself; "
        "a new folder is not made in its place"
    )

"""Storage of which some objects cannot be read, while it is used by whoever opens it by its URL."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from workers.local_storage import LocalStorage

Fault = Callable[[BinaryIO], BinaryIO]


def denied(file: BinaryIO) -> BinaryIO:
    """It cannot even be opened."""
    file.close()
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file.name))


def half_gone(file: BinaryIO) -> BinaryIO:
    """From the middle on its sectors cannot be read."""
    return cast(BinaryIO, _HalfGone(file))


class BadSectors:
    """Objects whose path ``is_bad`` have the ``fault``, from when it is set; ``num_opened`` counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: Fault = half_gone) -> None:
        self.is_bad: Callable[[Path], bool] = lambda path: False
        self.num_opened = 0
        opens = LocalStorage.open

        def open_it(storage: LocalStorage, key: str) -> BinaryIO:
            file = opens(storage, key)
            if not self.is_bad(Path(storage.url) / key):
                return file
            self.num_opened += 1
            return fault(file)

        monkeypatch.setattr(LocalStorage, "open", open_it)


class _HalfGone(io.RawIOBase):
    def __init__(self, file: Any) -> None:
        self._file = file
        self._end = os.fstat(file.fileno()).st_size // 2

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        if self._file.tell() + len(buffer) > self._end:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return int(self._file.readinto(buffer))

    def close(self) -> None:
        self._file.close()
        super().close()

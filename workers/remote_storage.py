"""Storage behind any URL that fsspec knows (``s3://``, ``gs://``, ``az://``, ``memory://``, ...)."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, BinaryIO, cast

import fsspec

from workers.errors import described
from workers.storage import PART_SUFFIX, Data, Found

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"})
"""Kinds of storage without folders, where to make one would be to make a bucket of a mistyped name."""


class RemoteStorage:
    """See ``Storage``. Buckets take an object whole or not at all; elsewhere it is written beside its place first."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        with _as_os_error(url):
            # A cached listing would hide what other machines wrote.
            self._files, self._root = fsspec.core.url_to_fs(self._url, use_listings_cache=False)

        self._has_buckets = self._url.split("://", 1)[0] in _BUCKETS

    @property
    def url(self) -> str:
        return self._url

    def write(self, key: str, parts: Iterable[Data]) -> int:
        path = self._path(key)
        if self._has_buckets:
            return self._stored(path, parts)
        with _as_os_error(path):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        part = f"{path}.{secrets.token_hex(4)}{PART_SUFFIX}"
        try:
            size_bytes = self._stored(part, parts)
            with _as_os_error(path):
                self._put_in_place(part, path)
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(part)
            raise
        return size_bytes

    def _stored(self, path: str, parts: Iterable[Data]) -> int:
        """Write an object; where that breaks off, buckets have what was there before."""
        size_bytes = 0
        with _as_os_error(path):
            file = self._files.open(path, "wb")
        try:
            for data in parts:
                flat = memoryview(data).cast("B")
                size_bytes += len(flat)
                with _as_os_error(path):
                    file.write(flat)
            with _as_os_error(path):
                file.close()
        except BaseException:
            self._let_go(file)
            raise
        return size_bytes

    def _let_go(self, file: Any) -> None:
        """To close a file of a bucket would store what there was of it, in place of what is there."""
        with suppress(Exception):
            if self._has_buckets:
                file.discard()
                file.closed = True
            else:
                file.close()

    def _put_in_place(self, part: str, path: str) -> None:
        try:
            self._files.mv(part, path)
        except Exception:
            if not self._files.exists(part) or not self._files.exists(path):
                raise
            # Some protocols rename to a free name only. What was there goes once the new object is in its place.
            earlier = f"{path}.{secrets.token_hex(4)}{PART_SUFFIX}"
            self._files.mv(path, earlier)
            try:
                self._files.mv(part, path)
            except BaseException:
                self._files.mv(earlier, path)
                raise
            with suppress(Exception):
                self._files.rm_file(earlier)

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        with _as_os_error(path):
            return cast(BinaryIO, _Reading(self._files.open(path, "rb"), path))

    def size(self, key: str) -> int | None:
        path = self._path(key)
        with _as_os_error(path):
            try:
                self._files.invalidate_cache()
                found = self._files.info(path)
            except FileNotFoundError:
                return None
            return int(found["size"]) if found["type"] == "file" else None

    def keys(self, folder: str = "") -> list[str]:
        return [found.key for found in self._found(self._path(folder) if folder else self._root)]

    def listed(self) -> list[Found]:
        return self._found(self._root)

    def _found(self, path: str) -> list[Found]:
        with _as_os_error(path):
            self._files.invalidate_cache()
            try:
                found = self._files.find(path, detail=True)
            except FileNotFoundError:
                return []
        prefix = self._root.rstrip("/") + "/"
        rows = [
            Found(key=name.removeprefix(prefix), size_bytes=int(info["size"]), modified_s=_modified_s(info))
            for name, info in found.items()
            if name.startswith(prefix)
        ]
        return sorted(rows, key=lambda row: row.key)

    def folders(self, folder: str = "") -> list[str]:
        path = self._path(folder) if folder else self._root
        with _as_os_error(path):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return []
        return sorted(i["name"].rstrip("/").rpartition("/")[2] for i in found if i["type"] == "directory")

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _as_os_error(path), suppress(FileNotFoundError):
            self._files.rm_file(path)

    def clear(self) -> None:
        with _as_os_error(self._root), suppress(FileNotFoundError):
            self._files.rm(self._root, recursive=True)

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"


class _Reading(io.RawIOBase):
    """An object, open to be read; what its library raises meanwhile comes out as OSError, too."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _as_os_error(self._path):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int | None = -1) -> bytes:
        with _as_os_error(self._path):
            return bytes(self._file.read(-1 if size is None else size))

    def readinto(self, buffer: Any) -> int:
        with _as_os_error(self._path):
            return int(self._file.readinto(buffer))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _modified_s(info: Mapping[str, Any]) -> float:
    """Every provider has a name of its own for it."""
    value = next((info[name] for name in _MODIFIED if info.get(name) is not None), 0.0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, datetime) else float(value)


_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
"""No object changes in place, so where only its making is told, that is it."""


@contextmanager
def _as_os_error(place: str) -> Iterator[None]:
    """Libraries of providers raise errors of their own; callers of the port know OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{place}: {described(error)}") from error

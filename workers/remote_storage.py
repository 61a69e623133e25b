"""Storage behind any URL that fsspec knows (``s3://``, ``gs://``, ``az://``, ``memory://``, ...)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

import fsspec

from workers.storage import Data


class RemoteStorage:
    """See ``Storage``. There is no rename here: what an object is worth, a manifest written last says."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        with _as_os_error(url):
            # A cached listing would hide what other machines wrote.
            self._files, self._root = fsspec.core.url_to_fs(self._url, use_listings_cache=False)

    @property
    def url(self) -> str:
        return self._url

    def write(self, key: str, parts: Iterable[Data]) -> int:
        path, size_bytes = self._path(key), 0
        with _as_os_error(path):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                with self._files.open(path, "wb") as file:
                    for data in parts:
                        flat = memoryview(data).cast("B")
                        file.write(flat)
                        size_bytes += len(flat)
            except BaseException:
                with suppress(Exception):  # closing it has stored what there was of it
                    self._files.rm_file(path)
                raise
        return size_bytes

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        with _as_os_error(path):
            return cast(BinaryIO, self._files.open(path, "rb"))

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
        path = self._path(folder) if folder else self._root
        with _as_os_error(path):
            self._files.invalidate_cache()
            try:
                found = self._files.find(path)
            except FileNotFoundError:
                return []
        prefix = self._root.rstrip("/") + "/"
        return sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _as_os_error(path), suppress(FileNotFoundError):
            self._files.rm_file(path)

    def clear(self) -> None:
        with _as_os_error(self._root), suppress(FileNotFoundError):
            self._files.rm(self._root, recursive=True)

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"


@contextmanager
def _as_os_error(place: str) -> Iterator[None]:
    """Libraries of providers raise errors of their own; callers of the port know OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{place}: {type(error).__name__}: {error}") from error

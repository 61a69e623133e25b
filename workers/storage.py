"""The storage port: what lasts is objects, each with a key, under a root that is a folder or a URL.

Keys are relative paths (``pieces/a``). Nothing is ever changed in place: an object is written whole, read
and deleted. Readers see what was written before they asked, on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, BinaryIO, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

Data: TypeAlias = bytes | bytearray | memoryview

PART_SUFFIX = ".part"
"""Ends the key of an object whose write was cut off; ``keys`` lists it, so that somebody can sweep it."""

MARK = "installation"
"""The key, at the root of an installation's storage, of its name: where a folder has none, that storage is away."""


class StorageAwayError(OSError):
    """A folder that should be storage does not bear the mark: a disk is not mounted, or somebody removed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An object in a list; ``modified_s`` is Unix seconds, 0 where the storage does not tell."""

    key: str
    size_bytes: int
    modified_s: float


class Storage(Protocol):
    """One root. All methods may be called from any thread and raise OSError where the storage fails."""

    @property
    def url(self) -> str:
        """The root, as ``open_storage`` takes it."""

    def write(self, key: str, parts: Iterable[Data]) -> int:
        """Store an object, whatever was there before; the answer is its size in bytes.

        It is on the disk when this returns. A crash meanwhile leaves the earlier object or none of a
        local folder; of other storage a torn new one may stay, so a reader must be able to tell.
        """

    def open(self, key: str) -> BinaryIO:
        """The object, to be read from any place in it; the caller closes it. Raises FileNotFoundError."""

    def size(self, key: str) -> int | None:
        """Its size in bytes, None where there is none."""

    def keys(self, folder: str = "") -> list[str]:
        """All keys below a folder of keys, in order; none where it is missing."""

    def listed(self) -> list[Found]:
        """All objects, in the order of their keys."""

    def folders(self, folder: str = "") -> list[str]:
        """The names of what has keys below it, right in a folder of keys."""

    def delete(self, key: str) -> None:
        """Remove an object; none being there is as good."""

    def clear(self) -> None:
        """Remove everything under the root."""


def open_storage(url: str, root: str | None = None) -> Storage:
    """The storage of a folder, a ``file://`` URL or any URL that fsspec knows.

    ``root`` is the installation's whole storage, of which ``url`` is a part: what is missing in a folder counts as
    missing only while the root bears its ``MARK``, and folders are made only then; else calls raise StorageAwayError.
    Raises OSError where a URL's scheme is unknown or its library is not installed.
    """
    from workers.local_storage import LocalStorage

    folder = local_folder(url)
    if folder is not None:
        return LocalStorage(folder, root=None if root is None else local_folder(root))
    # Here and not above: most services have a local folder and need no library of others.
    from workers.remote_storage import RemoteStorage

    return RemoteStorage(url)


def local_folder(url: str) -> str | None:
    """The path of a folder or ``file://`` URL, None for other storage."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None


def provide(url: str, options: Mapping[str, Any]) -> None:
    """Open storage of this URL's kind with these options of fsspec (keys, an endpoint) from now on, in this process."""
    if options and local_folder(url) is None:
        from fsspec.config import conf

        conf[url.split("://", 1)[0]] = dict(options)


def unusable(url: str) -> str | None:
    """Why a URL cannot be storage for processes on several machines, and what to do; None where it may.

    Nothing is reached for.
    """
    # Here and not above, see ``open_storage``.
    from fsspec.registry import known_implementations

    scheme = url.split("://", 1)[0]
    if scheme == "memory":
        return "other processes would not see it; use a folder"
    known = known_implementations.get(scheme)
    if known is None:
        return f"fsspec knows no {scheme}://; use a folder, s3://, gs://, az:// or another that it knows"
    library = str(known["class"]).split(".", 1)[0]
    if find_spec(library) is None:
        return str(known.get("err") or f"pip install {library}")
    return None


def join(url: str, *parts: str) -> str:
    """The URL or path of something below ``url``."""
    return "/".join([url.rstrip("/"), *parts])


def read(storage: Storage, key: str) -> bytes:
    """A whole small object. Raises FileNotFoundError."""
    with storage.open(key) as file:
        return file.read()

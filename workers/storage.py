"""The storage port: what lasts is objects, each with a key, under a root that is a folder or a URL.

Keys are relative paths (``pieces/a``). Nothing is ever changed in place: an object is written whole, read
and deleted. Readers see what was written before they asked, on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeAlias

from workers.errors import described

Data: TypeAlias = bytes | bytearray | memoryview

PART_SUFFIX = ".part"
"""Ends the key of an object whose write was cut off; ``keys`` lists it, so that somebody can sweep it."""

MARK = "installation"
"""The key, at the root of an installation's storage, of its name: where a folder has none, that storage is away."""


class StorageAwayError(OSError):
    """A folder that should be storage does not bear the mark: a disk is not mounted, or somebody removed it."""


class ObjectError(OSError):
    """One object is there and cannot be read; whether its whole storage is away only other objects tell."""


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
        """The root, as ``workers.storage_urls.open_storage`` takes it."""

    def write(self, key: str, parts: Iterable[Data]) -> int:
        """Store an object, whatever was there before; the answer is its size in bytes.

        It is on the disk when this returns. Where it fails, or a crash cuts it off, the earlier object stays (where
        a protocol renames to free names only, none may be there for a moment).
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


def read(storage: Storage, key: str) -> bytes:
    """A whole small object. Raises FileNotFoundError."""
    with storage.open(key) as file:
        return file.read()


@contextmanager
def reading(storage: Storage, key: str) -> Iterator[None]:
    """Raises ObjectError, with the object's place, where reading it fails; FileNotFoundError stays what it is."""
    try:
        yield
    except (FileNotFoundError, StorageAwayError):
        raise
    except OSError as error:
        raise ObjectError(f"{storage.url}/{key} cannot be read: {described(error)}") from error

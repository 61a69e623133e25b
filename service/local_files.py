"""Files in a folder that users' code writes to: listed and opened without ever leaving it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from service.documents import Document
from service.errors import NotFoundError
from service.times import rfc3339

MAX_LISTED = 10_000
MAX_DEPTH = 32
CHUNK_BYTES = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file on its way to a user: ``chunks`` blocks where it is read from storage."""

    name: str
    size_bytes: int
    chunks: Iterator[bytes]


def open_inside(root: Path, path: str) -> Download:
    """Open a regular file under ``root`` by a relative path, following no link on the way.

    Each part is opened in the folder that the part before it opened, so nothing can be swapped in
    between. Raises NotFoundError for everything that is not a regular file there.
    """
    missing = no_file(path)
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or not all(_is_plain(part) for part in parts):
        raise missing
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise missing from None
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without O_NONBLOCK a named pipe would be waited for.
        descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise missing from None
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise missing
    file = os.fdopen(descriptor, "rb")
    return Download(name=parts[-1], size_bytes=status.st_size, chunks=chunks_of(file, status.st_size))


def chunks_of(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """As much as there was when it was opened; less where it is cut short meanwhile, which its length then tells."""
    with file:
        while size_bytes > 0 and (data := file.read(min(CHUNK_BYTES, size_bytes))):
            size_bytes -= len(data)
            yield data


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and "/" not in part and "\0" not in part


def listed(root: Path) -> list[Document]:
    """``[{path, size_bytes, modified_at}]`` by path, as far as there are not too many; none where it is missing."""
    found = []
    for path, status in _walk(root, ""):
        found.append({"path": path, "size_bytes": status.st_size, "modified_at": rfc3339(status.st_mtime)})
        if len(found) == MAX_LISTED:
            break
    return sorted(found, key=lambda document: str(document["path"]))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    if prefix.count("/") >= MAX_DEPTH:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        try:
            entry.name.encode()
            status = entry.stat(follow_symlinks=False)
        except (OSError, UnicodeEncodeError):
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/")
        elif stat.S_ISREG(status.st_mode):
            yield f"{prefix}{entry.name}", status


def no_file(path: str) -> NotFoundError:
    """The answer for whatever is not a regular file there."""
    return NotFoundError(f"there is no file {path[:200]!r}; GET .../files lists them")

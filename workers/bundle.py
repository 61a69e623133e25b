"""Bundles: checking and safe extraction of the zip that carries a user's code.

Nothing in here imports or runs what it reads. Declared names, sizes and types are the archive's own
word and are not trusted: every byte is decompressed under the same bounds when a bundle is inspected
(by the service, at upload) and again when it is extracted (by a worker).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from workers.errors import BundleError

MAX_ENTRIES = 10_000
MAX_EXPANDED_BYTES = 500_000_000
MAX_RATIO = 100
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255
RESERVED_MODULE = "workers"

_CHUNK_BYTES = 1 << 20
_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_ENCRYPTED_FLAGS = 0x1 | 0x40 | 0x2000
_MODULE_SUFFIXES = (".py", ".pyc", ".so", ".pyd")
_LINK_OR_DEVICE = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}
# What zipfile raises for damaged archives depends on which byte is wrong.
_DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    IndexError,
    NotImplementedError,
    OSError,
)

BundleFile: TypeAlias = Path | BinaryIO
"""A path, or a seekable binary file that stays open and the caller's."""

Sink: TypeAlias = Callable[[bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSummary:
    """What an accepted bundle is: its identity, the archive's size, the number of files in it."""

    sha256: str
    size_bytes: int
    files: int


def inspect_bundle(file: BundleFile) -> BundleSummary:
    """Check a bundle whole, its compressed data included, without writing anything.

    Takes seconds of CPU for the largest that are allowed, so an event loop calls it in a thread.

    Raises BundleError, naming the first fault found.
    """
    with _opened(file) as (stream, size_bytes, sha256), _archive(stream) as archive:
        entries = _checked_entries(archive, size_bytes)
        budget = _Budget(size_bytes)
        for entry in entries:
            _read_through(archive, entry, budget, lambda _: None)
        return BundleSummary(sha256=sha256, size_bytes=size_bytes, files=sum(not e.is_dir() for e in entries))


def extract_bundle(file: BundleFile, folder: Path) -> BundleSummary:
    """Extract a bundle into ``folder``, which must not exist yet; only the owner can read it.

    On any failure nothing is left behind.

    Raises BundleError as ``inspect_bundle`` does, FileExistsError where the folder exists.
    """
    with _opened(file) as (stream, size_bytes, sha256), _archive(stream) as archive:
        entries = _checked_entries(archive, size_bytes)
        folder.mkdir(mode=0o700, parents=True)
        try:
            budget = _Budget(size_bytes)
            for entry in entries:
                _extract_entry(archive, entry, folder, budget)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return BundleSummary(sha256=sha256, size_bytes=size_bytes, files=sum(not e.is_dir() for e in entries))


class _Budget:
    """How many bytes the archive may still give, counted as they really come."""

    def __init__(self, archive_bytes: int) -> None:
        self.archive_bytes = archive_bytes
        self.expanded_bytes = 0

    def spend(self, num_bytes: int) -> None:
        self.expanded_bytes += num_bytes
        _check_expansion(self.expanded_bytes, self.archive_bytes)


def _check_expansion(expanded_bytes: int, archive_bytes: int) -> None:
    if expanded_bytes > MAX_EXPANDED_BYTES:
        raise BundleError(
            f"the bundle expands to at least {expanded_bytes} bytes, {MAX_EXPANDED_BYTES} are allowed; "
            "leave data out (.concertinaignore) and load it from elsewhere"
        )
    if expanded_bytes > MAX_RATIO * archive_bytes:
        raise BundleError(
            f"the bundle expands to more than {MAX_RATIO} times its {archive_bytes} bytes, as harmful archives do; "
            "leave out files of repeated content, or store them uncompressed"
        )


@contextmanager
def _opened(file: BundleFile) -> Iterator[tuple[BinaryIO, int, str]]:
    if isinstance(file, Path):
        with file.open("rb") as stream, _opened(stream) as described:
            yield described
        return
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    size_bytes = file.tell()
    file.seek(0)
    yield file, size_bytes, digest.hexdigest()


@contextmanager
def _archive(stream: BinaryIO) -> Iterator[zipfile.ZipFile]:
    # zipfile takes a zip behind anything else, as programs that extract themselves are.
    if stream.read(len(_MAGIC[0])) not in _MAGIC:
        raise BundleError("the bundle is not a zip archive; upload a zip")
    try:
        archive = zipfile.ZipFile(stream)
    except _DAMAGE as error:
        raise BundleError(f"the bundle is not a zip archive that can be read ({error}); upload a zip") from None
    with archive:
        yield archive


def _checked_entries(archive: zipfile.ZipFile, archive_bytes: int) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise BundleError(
            f"the bundle has {len(entries)} entries, {MAX_ENTRIES} are allowed; leave files out (.concertinaignore)"
        )
    for entry in entries:
        _check_name(entry.orig_filename)
        _check_kind(entry)
    _check_expansion(sum(max(0, e.file_size) for e in entries), archive_bytes)
    _check_collisions(entries)
    if all(entry.is_dir() for entry in entries):
        raise BundleError("the bundle holds no file; put your code into it")
    return entries


def _check_name(name: str) -> None:
    parts = name.removesuffix("/").split("/")
    fault = None
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        fault = "is an absolute path"
    elif "\\" in name:
        fault = "has a backslash"
    elif ".." in parts:
        fault = "leads out of the bundle by '..'"
    elif not all(parts) or "." in parts:
        fault = "is not a plain path"
    elif not name.isprintable():
        fault = "has characters that cannot be printed"
    elif len(name.encode(errors="replace")) > MAX_PATH_BYTES:
        fault = f"is longer than {MAX_PATH_BYTES} bytes"
    elif any(len(part.encode(errors="replace")) > MAX_NAME_BYTES for part in parts):
        fault = f"has a part longer than {MAX_NAME_BYTES} bytes"
    if fault is not None:
        raise BundleError(
            f"the entry {name!r:.200} {fault}; make the zip of relative paths with '/' from inside your code's folder"
        )
    _check_is_free(name, parts)


def _check_is_free(name: str, parts: list[str]) -> None:
    is_package = parts[0] == RESERVED_MODULE and (len(parts) > 1 or name.endswith("/"))
    is_module = len(parts) == 1 and name.split(".")[0] == RESERVED_MODULE and name.endswith(_MODULE_SUFFIXES)
    if is_package or is_module:
        raise BundleError(
            f"the entry {name!r:.200} makes a top-level module {RESERVED_MODULE!r}, the one name that the service "
            "keeps for itself; rename your module or package"
        )


def _check_kind(entry: zipfile.ZipInfo) -> None:
    name = entry.filename
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind in _LINK_OR_DEVICE:
        raise BundleError(
            f"the entry {name!r:.200} is {_LINK_OR_DEVICE[kind]}; bundles hold files and folders only, "
            "so put a copy in its place or leave it out"
        )
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > entry.is_dir():
        raise BundleError(f"the entry {name!r:.200} is neither file nor folder (mode {kind:#o}); leave it out")
    if entry.flag_bits & _ENCRYPTED_FLAGS:
        raise BundleError(f"the entry {name!r:.200} is encrypted; make the zip without a password")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BundleError(
            f"the entry {name!r:.200} is compressed by method {entry.compress_type}; "
            "use deflate (method 8), as zip tools do by default"
        )


def _check_collisions(entries: list[zipfile.ZipInfo]) -> None:
    """No two entries, nor the folders on the way to them, may be one path on any file system."""
    spelled: dict[str, str] = {}
    listed: set[str] = set()
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        path = entry.filename.removesuffix("/")
        *parents, key = _path_keys(path, spelled)
        if key in listed:
            raise BundleError(f"the entry {path!r:.200} is there twice; make the zip anew with each path once")
        folders.update(parents)
        listed.add(key)
        (folders if entry.is_dir() else files).add(key)
        for both in files & {key, *parents} & folders:
            raise BundleError(f"{spelled[both]!r:.200} is both a file and a folder in the bundle; rename one of them")


def _path_keys(path: str, spelled: dict[str, str]) -> list[str]:
    """What the path and its folders, outermost first, are on a file system that folds case.

    ``spelled`` remembers how each was written; another spelling of the same is refused.
    """
    parts = path.split("/")
    keys = []
    for depth in range(1, len(parts) + 1):
        prefix = "/".join(parts[:depth])
        key = unicodedata.normalize("NFC", prefix).casefold()
        if (other := spelled.setdefault(key, prefix)) != prefix:
            raise BundleError(
                f"{other!r:.200} and {prefix!r:.200} differ only in case, so not every file system can hold both; "
                "rename one of them"
            )
        keys.append(key)
    return keys


def _extract_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, budget: _Budget) -> None:
    target = folder / entry.filename
    if entry.is_dir():
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_executable = bool(entry.external_attr >> 16 & stat.S_IXUSR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, 0o700 if is_executable else 0o600), "wb") as output:
        _read_through(archive, entry, budget, output.write)


def _read_through(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: _Budget, sink: Sink) -> None:
    """Decompress one entry into ``sink``, checking its bytes against the budget and its checksum."""
    chunks = _chunks(archive, entry)
    while True:
        try:
            chunk = next(chunks, b"")
        except _DAMAGE as error:
            raise BundleError(f"the entry {entry.filename!r:.200} is damaged ({error}); upload the zip again") from None
        if not chunk:
            return
        budget.spend(len(chunk))
        sink(chunk)


def _chunks(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(entry) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk

"""Whether an uploaded archive may be accepted; nothing of it is extracted or imported."""

from __future__ import annotations

import stat
import unicodedata
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from workers.errors import BundleError

MAX_ENTRIES = 10_000
MAX_RATIO = 100
MAX_NAME_BYTES = 1024
MAX_PART_BYTES = 255
RESERVED_MODULE = "workers"
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_IS_ENCRYPTED = 0x1
_CHUNK_BYTES = 1 << 20


def check_archive(path: Path, max_bytes: int) -> int:
    """The number of files in a zip that is fit to be a bundle.

    ``max_bytes`` bounds what it expands to. All its bytes are read once, so that a broken archive is
    refused here and not on a worker. Raises BundleError that names the entry at fault.
    """
    with path.open("rb") as file:
        if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise BundleError("the body is not a zip archive; send the bytes of a .zip")
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                _check_sizes(entries, path.stat().st_size, max_bytes)
                names = _Names()
                for entry in entries:
                    _check_entry(entry)
                    names.add(entry)
                for entry in entries:
                    _read_through(archive, entry)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError, OSError) as error:
            raise BundleError(f"the zip archive is broken ({error}); make it anew") from None
    num_files = sum(not entry.is_dir() for entry in entries)
    if num_files == 0:
        raise BundleError("the archive holds no file; put your code into it")
    return num_files


def _check_sizes(entries: list[zipfile.ZipInfo], size_bytes: int, max_bytes: int) -> None:
    if len(entries) > MAX_ENTRIES:
        raise BundleError(f"the archive has {len(entries)} entries; at most {MAX_ENTRIES} are accepted")
    expanded = sum(entry.file_size for entry in entries)
    if expanded > max_bytes:
        raise BundleError(f"the archive expands to {expanded} bytes; at most {max_bytes} are accepted")
    if expanded > MAX_RATIO * size_bytes:
        raise BundleError(
            f"the archive expands {expanded / size_bytes:.0f}-fold; at most {MAX_RATIO}-fold is accepted, "
            "leave out what compresses so well, or store it uncompressed"
        )


def _check_entry(entry: zipfile.ZipInfo) -> None:
    # zipfile cuts ``filename`` at a zero byte and turns separators around; this is what the archive says.
    name: str = entry.orig_filename
    shown = repr(name[:200])
    mode = entry.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if stat.S_ISLNK(mode):
        raise BundleError(f"{shown} is a link; put the file itself into the archive")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BundleError(f"{shown} is a device or pipe; leave it out")
    if entry.flag_bits & _IS_ENCRYPTED:
        raise BundleError(f"{shown} is encrypted; make the archive without a password")
    if entry.compress_type not in _METHODS:
        raise BundleError(f"{shown} is compressed by method {entry.compress_type}; use deflate or none")
    if any(ord(c) < 32 or ord(c) == 127 for c in name) or "\\" in name:
        raise BundleError(f"{shown} has a control character or backslash in its name; rename it")
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or (len(parts[0]) >= 2 and parts[0][1] == ":"):
        raise BundleError(f"{shown} is an absolute path; names must be relative to the archive's top")
    if any(part in ("", ".", "..") for part in parts):
        raise BundleError(f"{shown} has '..', '.' or an empty part; names must be plain relative paths")
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES or any(
        len(part.encode(errors="replace")) > MAX_PART_BYTES for part in parts
    ):
        raise BundleError(f"{shown} is too long a name; at most {MAX_NAME_BYTES} bytes, {MAX_PART_BYTES} each part")
    top = parts[0]
    if top == RESERVED_MODULE or (len(parts) == 1 and top.split(".")[0] == RESERVED_MODULE):
        raise BundleError(f"{shown} would hide the service's own module {RESERVED_MODULE!r} from your code; rename it")


class _Names:
    """Finds names that would be one file on some file system."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add(self, entry: zipfile.ZipInfo) -> None:
        """Raises BundleError when the entry collides with an earlier one."""
        name = entry.orig_filename.removesuffix("/")
        parts = name.split("/")
        folders = parts if entry.is_dir() else parts[:-1]
        for depth in range(1, len(folders) + 1):
            self._add_folder("/".join(folders[:depth]))
        if not entry.is_dir():
            key = _folded(name)
            if (seen := self._files.get(key) or self._folders.get(key)) is not None:
                raise BundleError(f"{name[:200]!r} and {seen[:200]!r} would be the same file; rename one")
            self._files[key] = name

    def _add_folder(self, name: str) -> None:
        key = _folded(name)
        seen = self._files.get(key) or self._folders.setdefault(key, name)
        if seen != name or key in self._files:
            raise BundleError(f"{name[:200]!r} and {seen[:200]!r} would be the same; rename one")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _read_through(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    if entry.is_dir():
        return
    with archive.open(entry) as stream:
        source: BinaryIO = stream  # type: ignore[assignment]  # typeshed has it as IO[bytes]
        while source.read(_CHUNK_BYTES):
            pass

"""Storage by its place, a folder or a URL: opened, given its options, told from what cannot be storage."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

from workers.local_storage import LocalStorage
from workers.storage import Storage

_READ_ONLY = frozenset({"http", "https", "zip", "tar", "libarchive", "git", "github", "gist", "data", "reference"})
"""Kinds that fsspec only reads, or writes as one file at once."""


def open_storage(url: str, root: str | None = None) -> Storage:
    """The storage of a folder, a ``file://`` URL or any URL that fsspec knows.

    ``root`` is the installation's whole storage, of which ``url`` is a part: what is missing in a folder counts as
    missing only while the root bears its ``MARK``, and folders are made only then; else calls raise StorageAwayError.
    Raises OSError where a URL's scheme is unknown or its library is not installed.
    """
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
    if scheme in _READ_ONLY:
        return f"nothing can be written to {scheme}://; use a folder, s3://, gs://, az:// or another that can be"
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

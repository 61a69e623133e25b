"""Makes a bundle of a folder: the zip that carries a user's code to the workers.

Obeys ``.gitignore`` and ``.concertinaignore`` (nested ones and those above the folder up to the
repository's root, too). The same files give the same bytes, so that a bundle is uploaded only once.
Everything that the service would refuse is refused here first, before anything is sent.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from service.requirements import RequirementsError, read_requirements

IGNORE_FILES = (".gitignore", ".concertinaignore")  # the later one decides
NEVER_PACKED = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".venv", ".tox", ".nox", ".eggs", "node_modules"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".DS_Store"),
    }
)
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold
# A file that shrinks more than this at the fastest level is stored as it is: at the level used it might pass the
# ratio of 100 that the service refuses.
MAX_FAST_RATIO = 25.0


class PackingError(Exception):
    """A folder cannot become a bundle; the message names the file and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingLimits:
    """What the service accepts; ``max_expanded_bytes`` counts the files as they lie in the folder."""

    max_files: int = 10_000
    max_expanded_bytes: int = 500 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A packed folder. ``sizes`` maps paths within it to bytes; ``data`` is the zip."""

    data: bytes
    sizes: Mapping[str, int]
    dependencies: tuple[str, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def expanded_bytes(self) -> int:
        return sum(self.sizes.values())

    def largest(self, count: int) -> list[tuple[str, int]]:
        """The ``count`` largest files with their bytes, largest first."""
        return sorted(self.sizes.items(), key=lambda item: (-item[1], item[0]))[:count]


def pack(folder: Path, limits: PackingLimits | None = None) -> Bundle:
    """Pack a folder; ``dependencies`` are those of its ``requirements.txt``, none where it has none.

    Raises PackingError when the folder is missing or empty, above a limit, or holds what cannot travel.
    """
    limits = limits or PackingLimits()
    if not folder.is_dir():
        raise PackingError(f"the code folder {str(folder)!r} does not exist; correct `code:` in the job file")
    sizes: dict[str, int] = {}
    for name in list_files(folder):
        sizes[name] = (folder / name).stat().st_size
        if len(sizes) > limits.max_files:
            raise PackingError(_too_much(folder, f"more than {limits.max_files:,} files", sizes))
    if not sizes:
        raise PackingError(f"no file is left to pack in {str(folder)!r}; check .gitignore and .concertinaignore")
    if sum(sizes.values()) > limits.max_expanded_bytes:
        raise PackingError(_too_much(folder, f"more than {limits.max_expanded_bytes / 1e6:,.0f} MB", sizes))
    _check_names(sizes)
    try:
        dependencies = read_requirements(folder)
    except RequirementsError as error:
        raise PackingError(str(error)) from None
    return Bundle(data=_zip(folder, sizes), sizes=sizes, dependencies=dependencies)


def list_files(folder: Path) -> Iterator[str]:
    """The files that a bundle of the folder would hold: POSIX paths, sorted.

    Raises PackingError at a symbolic link or a special file that is not ignored.
    """
    root = folder.resolve()
    yield from sorted(_walk(root, root, _rules_above(root)))


@dataclass(frozen=True, slots=True)
class _Rules:
    folder: Path
    patterns: tuple[tuple[re.Pattern[str], bool], ...]

    def verdict(self, path: Path, is_folder: bool) -> bool | None:
        """True: ignored; False: taken back in; None: these rules do not name it."""
        name = path.relative_to(self.folder).as_posix() + ("/" if is_folder else "")
        return next((ignores for regex, ignores in reversed(self.patterns) if _names(regex, name)), None)


def _names(regex: re.Pattern[str], name: str) -> bool:
    """Whether a pattern names exactly this path.

    pathspec's expressions go on to what lies below a folder. Git does not look there: what a folder's
    own verdict prunes is gone, so `!a` brings back nothing below `a` that another pattern ignores.
    """
    found = regex.search(name)
    if found is None:
        return False
    if "ps_d" in regex.groupindex:  # pathspec's mark of the end of the path that the pattern spells
        return found.end() == len(name)
    return not regex.pattern.endswith("/") or found.end() < len(name)  # `a/**` is all inside `a`, without `a`


def _walk(root: Path, folder: Path, above: tuple[_Rules, ...]) -> Iterator[str]:
    rules = above + _rules_of(folder)
    for entry in os.scandir(folder):
        path = folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in NEVER_PACKED or entry.name.endswith((".pyc", ".pyo")) or _is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            if not (path / "pyvenv.cfg").exists():
                yield from _walk(root, path, rules)
            continue
        name = path.relative_to(root).as_posix()
        if not entry.is_file(follow_symlinks=False):
            what = "a symbolic link" if entry.is_symlink() else "not an ordinary file"
            raise PackingError(f"{name} is {what}, which cannot travel; copy it, or name it in .concertinaignore")
        yield name


def _is_ignored(path: Path, is_folder: bool, rules: tuple[_Rules, ...]) -> bool:
    verdicts = (r.verdict(path, is_folder) for r in reversed(rules))
    return next((v for v in verdicts if v is not None), False)


def _rules_of(folder: Path) -> tuple[_Rules, ...]:
    found = []
    for name in IGNORE_FILES:
        file = folder / name
        if file.is_file():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            patterns = GitIgnoreSpec.from_lines(lines).patterns
            found.append(_Rules(folder, tuple((p.regex, bool(p.include)) for p in patterns if p.regex is not None)))
    return tuple(found)


def _rules_above(root: Path) -> tuple[_Rules, ...]:
    """Rules of the folders above, from the root of the repository down; none outside a repository."""
    if (root / ".git").exists():
        return ()
    folders = list(root.parents)
    for count, folder in enumerate(folders, start=1):
        if (folder / ".git").exists():
            return tuple(rule for above in reversed(folders[:count]) for rule in _rules_of(above))
    return ()


def _check_names(sizes: Mapping[str, int]) -> None:
    seen: dict[str, str] = {}
    for name in sizes:
        top = name.split("/")[0]
        if top in ("workers", "workers.py"):
            raise PackingError(
                f"{top!r} at the top of the code folder is the one name that Concertina keeps for itself; rename it"
            )
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise PackingError(f"{name!r} is not valid UTF-8; rename the file") from None
        if "\\" in name or ":" in top:
            raise PackingError(f"{name!r} is not a portable name; rename it without backslash and colon")
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise PackingError(f"{other!r} and {name!r} differ only in upper and lower case; rename one of them")


def _zip(folder: Path, sizes: Mapping[str, int]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sizes:
            path = folder / name
            content = path.read_bytes()
            member = zipfile.ZipInfo(name, date_time=EPOCH)
            member.create_system = 3  # POSIX, wherever it is packed
            is_executable = path.stat().st_mode & stat.S_IXUSR
            member.external_attr = (stat.S_IFREG | (0o755 if is_executable else 0o644)) << 16
            is_extreme = len(content) > MAX_FAST_RATIO * len(zlib.compress(content, 1))
            archive.writestr(member, content, zipfile.ZIP_STORED if is_extreme else zipfile.ZIP_DEFLATED, 6)
    return buffer.getvalue()


def _too_much(folder: Path, what: str, sizes: Mapping[str, int]) -> str:
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    listed = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in largest)
    return (
        f"{str(folder)!r} holds {what}, more than a bundle may; largest so far: {listed}. "
        "Name data in .concertinaignore and let the code read it from where it lies"
    )

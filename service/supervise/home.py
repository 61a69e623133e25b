"""The home directory of one installation, and the short temporary folder that belongs to it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER = "concertina-home"
CONFIG = "config.toml"
STORAGE_PARTS = ("bundles", "jobs", "installation")  # service/folders.py
# Ray's socket paths add about 65 characters to its folder, and a socket's path ends at 107.
MAX_TEMP_CHARS = 40
_MARKER_TEXT = "This folder belongs to Concertina. `concertina purge` removes it, with all that is in it.\n"


class HomeError(Exception):
    """The home directory cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where an installation keeps everything; ``path`` is absolute."""

    path: Path

    @property
    def run(self) -> Path:
        """Lock, addresses and keys of the processes that run now."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def lock_file(self) -> Path:
        return self.run / "serve.lock"

    @property
    def settings_file(self) -> Path:
        """The settings of the `serve` that ran last, as variables: for commands that act on what it left."""
        return self.run / "settings.json"

    @property
    def ray_file(self) -> Path:
        return self.run / "ray.json"

    @property
    def ray_token(self) -> Path:
        return self.run / "ray_token"

    @property
    def is_marked(self) -> bool:
        """Whether this folder was made by Concertina, so that all in it may be removed."""
        return (self.path / MARKER).is_file()

    def prepare(self) -> None:
        """Make the folders, readable by their owner only.

        Raises HomeError where the path holds something that is not ours, or cannot be written.
        """
        try:
            if self.path.exists() and not self.is_marked:
                foreign = sorted(e.name for e in self.path.iterdir() if e.name != CONFIG)
                if foreign:
                    raise HomeError(
                        f"{self.path} is not Concertina's: it holds {', '.join(foreign[:3])}; "
                        "give --home an empty or a new folder"
                    )
            for folder in (self.path, self.run, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
            if not self.is_marked:
                (self.path / MARKER).write_text(_MARKER_TEXT)
        except OSError as error:
            raise HomeError(
                f"the home directory {self.path} cannot be used: {error}; choose another by --home"
            ) from None

    def temp_dir(self) -> Path:
        """This installation's short temporary folder: made if need be, remembered, readable by its owner only.

        Raises OSError where it cannot be remembered, as in a home that was removed meanwhile.
        """
        remembered = self.remembered_temp_dir()
        if remembered is not None and is_private(remembered):
            return remembered
        made = Path(tempfile.mkdtemp(prefix="ct-", dir=_short_temp_root()))
        try:
            write_private(self._temp_note, f"{made}\n")
        except OSError:
            made.rmdir()  # nobody would know whose it is
            raise
        return made

    def remembered_temp_dir(self) -> Path | None:
        """The temporary folder that was made last, which may be gone by now; None before the first."""
        try:
            text = self._temp_note.read_text().strip()
        except OSError:
            return None
        return Path(text) if text else None

    def remember_outside(self, paths: Iterable[Path]) -> None:
        """Note storage and database files that lie elsewhere, so that they can be removed with the home."""
        known = self.outside()
        added = [p for p in paths if not p.is_relative_to(self.path) and p not in known]
        if added:
            write_private(self._outside_note, "".join(f"{p}\n" for p in (*known, *added)))

    def outside(self) -> list[Path]:
        """What this installation has used outside its home and temporary folder."""
        try:
            return [Path(line) for line in self._outside_note.read_text().splitlines() if line]
        except OSError:
            return []

    def belongings(self) -> list[Path]:
        """Everything that this installation put on the machine and that is still there.

        Raises HomeError for a folder that is not marked as Concertina's.
        """
        if self.path.exists() and not self.is_marked:
            raise HomeError(f"{self.path} does not bear Concertina's mark ({MARKER}); remove it by hand if it is yours")
        inside = [p for outside in self.outside() for p in _ours_in(outside)]
        temp_dir = self.remembered_temp_dir()
        return [p for p in (*inside, temp_dir, self.path) if p is not None and p.exists()]

    def remove(self) -> None:
        """Remove all belongings. The caller has made sure that nothing runs from here. Raises HomeError."""
        outside = [p for p in self.outside() if p.is_dir()]
        for path in self.belongings():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in outside:
            if not any(folder.iterdir()):
                folder.rmdir()

    @property
    def _outside_note(self) -> Path:
        return self.path / "outside"

    @property
    def _temp_note(self) -> Path:
        return self.run / "temp_dir"


def _ours_in(outside: Path) -> list[Path]:
    """Of a storage folder only what the service makes in it; of a database its companions, too."""
    if outside.is_dir():
        return [outside / name for name in STORAGE_PARTS]
    return [outside.with_name(outside.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def is_private(folder: Path) -> bool:
    """Whether it is a real folder of this user's that nobody else can enter."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    part.replace(file)


def _short_temp_root() -> str:
    root = tempfile.gettempdir()
    return root if len(root) + len("/ct-12345678") <= MAX_TEMP_CHARS else "/tmp"

"""Which checkpoint in storage to go on from."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from workers.checkpoints import DAMAGED, attempt_of, checkpoint_names, damage, manifest_key, name_in, read_manifest
from workers.errors import CheckpointError
from workers.plan import TimelineKind
from workers.status import CheckpointInfo, TimelineRow
from workers.storage import ObjectError, Storage, read
from workers.storage_urls import open_storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The checkpoint to go on from, None for a start afresh; ``rows`` tell of newer ones that are passed over."""

    latest: CheckpointInfo | None = None
    rows: tuple[TimelineRow, ...] = ()


class CheckpointSearch:
    """Looks for the newest checkpoint of an attempt above ``restart_after`` whose checksums hold.

    A damaged one is set aside for good, so that it does not count as one of those to keep; it costs the
    steps since the one before, not the job. So is one of which a file stays unreadable, but only where its storage
    shows that it is there: before the file fails once more another checkpoint is read from it whole, and the note
    is written to it before the manifest goes.
    """

    def __init__(self, url: str, restart_after: int, root: str | None = None) -> None:
        """``root``: see ``workers.storage_urls.open_storage``."""
        self.url, self._restart_after, self._root = url, restart_after, root
        self._intact: str | None = None

    def doubt(self) -> None:
        """Somebody could not read what was found: look at its bytes again."""
        self._intact = None

    def look(self, *, passes_unread: bool = False) -> Found:
        """Read all bytes of the newest one, once until it is doubted; blocks. Raises OSError where storage fails.

        ``passes_unread``: for long enough one could not be read; it is set aside where one before it is whole.
        """
        storage = open_storage(self.url, self._root)
        passed, unread, latest = dict[str, str](), dict[str, ObjectError](), None
        for name in self._names(storage):
            try:
                latest, why = self._looked_at(storage, name)
            except ObjectError as error:
                if not passes_unread:
                    raise
                unread[name], why = error, str(error)
                self._intact = None  # what was whole before must show now that it can be read
            if latest is not None:
                break
            passed[name] = why
        if unread and latest is None:
            raise _with_none_before(next(iter(unread.values())))
        if any(_is_readable(storage, name) for name in unread):
            return self.look()
        for name, why in passed.items():
            _set_aside(storage, name, why)
        return Found(latest=latest, rows=self._passed(storage, latest.path if latest else ""))

    def _names(self, storage: Storage) -> list[str]:
        """Newest first."""
        return [name for name in reversed(checkpoint_names(storage)) if attempt_of(name) > self._restart_after]

    def _looked_at(self, storage: Storage, name: str) -> tuple[CheckpointInfo | None, str]:
        """What a whole one is, None and why for a damaged one. Raises ObjectError where it cannot be read."""
        if name != self._intact and (why := damage(storage, name)) is not None:
            return None, why
        manifest = read_manifest(storage, name)
        assert manifest is not None
        self._intact = name
        return manifest.info, ""

    def _passed(self, storage: Storage, found: str) -> tuple[TimelineRow, ...]:
        """A row for each that is newer than the one found, also where an earlier controller set it aside."""
        names = {name for key in storage.keys(DAMAGED) if key == _note_key(name := name_in(key))}  # some are unfinished
        newer = [name for name in sorted(names) if name > found and attempt_of(name) > self._restart_after]
        return tuple(_row(storage, name) for name in newer)


def _is_readable(storage: Storage, name: str) -> bool:
    try:
        damage(storage, name)
    except ObjectError:
        return False
    return True


def _with_none_before(error: ObjectError) -> OSError:
    return OSError(
        f"{error}; no checkpoint before it is whole: make it readable again, or remove that file, and the job goes on "
        "without it"
    )


def _set_aside(storage: Storage, name: str, why: str) -> None:
    try:
        manifest = read_manifest(storage, name)
    except (CheckpointError, ObjectError):
        manifest = None
    note = {"step": manifest.info.step if manifest else None, "why": why, "time": time.time()}
    # The note first: the row is made from it, by this controller or by the next. And it is on the disk: where only a
    # memory of the storage answers, this fails, and the checkpoint stays.
    storage.write(_note_key(name), [json.dumps(note).encode()])
    storage.delete(manifest_key(name))


def _note_key(name: str) -> str:
    return f"{DAMAGED}/{name}.json"


def _row(storage: Storage, name: str) -> TimelineRow:
    note = json.loads(read(storage, _note_key(name)))
    step = note["step"]
    which = f"of step {step}" if step is not None else name
    return TimelineRow(
        key=f"passed/{name}",
        kind=TimelineKind.RESTORE,
        time=note["time"],
        step=step or 0,
        actor="controller",
        reason=f"the checkpoint {which} is passed over: {note['why']}",
        after={"passed_over": name},
        cost_s=0.0,
    )

"""Checkpoints written beside the training: one thread, one save at a time.

What is written is in ``writing``, what it looks like in ``workers.checkpoints``. A checkpoint takes what did not
change from the last but one: so two in a row share no file, and whatever one damaged file spoils, the newest
checkpoint or the one before it is whole. What is taken is read first, and written anew where it is damaged: so damage
lasts for at most two saves. Where ``keep`` is 1 there is none before, and each takes from the last. Not
promised: a restart before those saves when a file of each of the two was damaged; and a file that
its machine still has in memory reads well, whatever became of it on the disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from workers.errors import CheckpointError, described
from workers.retention import remove_superfluous
from workers.status import CheckpointInfo, FailedSave
from workers.storage import Storage, StorageAwayError
from workers.training.pieces import Unwanted
from workers.training.staging import Form, Place, Staging
from workers.training.state import CheckpointHeader, StateSnapshot
from workers.training.writing import Wish, write_checkpoint

MAX_FAILED = 8
NUM_COPIES = 2
"""Of what does not change, in turns."""

NICENESS = 5


@dataclass(frozen=True, slots=True)
class _Save:
    snapshot: StateSnapshot
    header: CheckpointHeader
    staging: Staging


class CheckpointWriter:
    """Writes the checkpoints of one worker.

    Kept are the newest ``keep``, the best by the metric (``mode``: max or min; ``metric`` None: there is no
    best) and every final one, whoever wrote them; others in ``storage`` are removed after each save.
    """

    def __init__(self, storage: Storage, keep: int, metric: str | None, mode: str) -> None:
        self._storage, self._keep, self._mode = storage, keep, mode if metric else None
        self._changed = threading.Condition()
        self._waiting: _Save | None = None
        self._wish = Wish()
        self._is_writing = False
        self._wanted: Mapping[Place, Form] | None = None
        self._bases: deque[str] = deque(maxlen=min(keep, NUM_COPIES))
        self._spare: Staging | None = None
        self._done: list[CheckpointInfo] = []
        self._failed: dict[str, FailedSave] = {}
        self._error: CheckpointError | None = None

    def build_on(self, name: str) -> None:
        """This state was read whole from a checkpoint here: what stays as it is need not be written again."""
        self._bases.clear()
        self._bases.append(name)

    def prepare(self, wanted: Mapping[Place, Form]) -> None:
        """Make memory for snapshots of these forms meanwhile; nothing is lost where there is none."""
        with self._changed:
            self._wanted = wanted
            self._wake()

    def staging(self) -> Staging:
        """Memory for the next snapshot. While a save is being written one more may wait; a newer one takes its place.

        To be handed back by ``save``.
        """
        with self._changed:
            if self._waiting is not None:
                passed, self._waiting = self._waiting, None
                print(
                    f"checkpoint of step {passed.header.step} skipped: the one before it is still being written",
                    flush=True,
                )
                return passed.staging
            spare, self._spare = self._spare, None
            return spare or Staging()

    def save(self, snapshot: StateSnapshot, header: CheckpointHeader, staging: Staging) -> None:
        """Take the snapshot with the memory that it lies in, and return at once."""
        with self._changed:
            self._waiting = _Save(snapshot, header, staging)
            self._wake()

    def finished(self) -> list[CheckpointInfo]:
        """The checkpoints completed since the last call, oldest first."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def failed(self) -> tuple[FailedSave, ...]:
        """The last saves that failed, oldest first; they stay, for whoever asks next."""
        with self._changed:
            return tuple(self._failed.values())

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was to be saved is on the disk.

        Raises CheckpointError where the newest save failed or is not done in time (it goes on then).
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_writing, timeout_s):
                raise CheckpointError(
                    f"a checkpoint was not written to {self._storage.url} within {timeout_s:g} s; "
                    "see whether the storage is slow or stuck"
                )
            error, self._error = self._error, None
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Drop what waits and what is being written; no checkpoint appears from either after this returns."""
        with self._changed:
            self._waiting = None
            wish = self._wish
        wish.withdraw()

    def _wake(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            threading.Thread(target=self._run, name="checkpoint-writer", daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            # Training has the processors first; this may take longer.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._changed:
                save, self._waiting = self._waiting, None
                wanted, self._wanted = self._wanted, None
                if save is None and wanted is None:
                    self._is_writing = False
                    self._changed.notify_all()
                    return
                self._wish = wish = Wish()
            if save is not None:
                self._attempt(save, wish)
            elif wanted is not None:
                self._make(wanted)

    def _make(self, wanted: Mapping[Place, Form]) -> None:
        staging = Staging()
        try:
            staging.prepare(wanted)
        except (RuntimeError, MemoryError) as error:
            print(f"memory for checkpoints cannot be had ahead of the first: {described(error)}", flush=True)
            return
        with self._changed:
            self._spare = staging

    def _attempt(self, save: _Save, wish: Wish) -> None:
        info: CheckpointInfo | None = None
        error: CheckpointError | None = None
        try:
            info = write_checkpoint(self._storage, save.snapshot, save.header, self._base(), wish)
        except Unwanted:
            pass
        except Exception as fault:  # storage of all kinds, and tensors of all kinds: the training must not end for it
            error = self._told(save.header, fault)
        with self._changed:
            self._spare = save.staging
            self._error = error
            if info is not None:
                if info.path not in self._bases:
                    self._bases.append(info.path)
                self._done.append(info)
        if info is not None:
            self._tidy()

    def _base(self) -> str | None:
        """What the next save takes from, None until there is a copy for each turn."""
        return self._bases[0] if len(self._bases) == self._bases.maxlen else None

    def _told(self, header: CheckpointHeader, fault: Exception) -> CheckpointError:
        why = fault.message if isinstance(fault, CheckpointError) else described(fault)
        remedy = "free space or correct the storage (the checkpoints before it are kept)"
        if isinstance(fault, StorageAwayError):
            why, remedy = str(fault), "training goes on, and the next checkpoint is tried"
        error = CheckpointError(
            f"the checkpoint of step {header.step} cannot be written to {self._storage.url}: {why}; {remedy}"
        )
        error.__cause__ = fault
        told = FailedSave(path=header.name, step=header.step, time=time.time(), message=error.message)
        with self._changed:
            self._failed.setdefault(told.path, told)
            if len(self._failed) > MAX_FAILED:
                del self._failed[next(iter(self._failed))]
        print(error.message, flush=True)
        return error

    def _tidy(self) -> None:
        try:
            remove_superfluous(self._storage, self._keep, self._mode)
        except Exception as error:  # as above: who writes must not end for it
            print(f"superfluous checkpoints in {self._storage.url} cannot be removed: {error}", flush=True)

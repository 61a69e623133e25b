"""What the training thread takes its micro-batches from: read by itself, or ahead of it by whoever it chose."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from itertools import islice

import torch

from workers.errors import JobError, described
from workers.measures import LoaderChange
from workers.task import Batch
from workers.training.batching import num_seedings
from workers.training.generators import fingerprint
from workers.training.loader_choice import INLINE, LoaderChoice, RoundCost, Verdict, Way
from workers.training.loader_fleet import Fleet, NoLoadersError
from workers.training.loader_process import LoaderGoneError, LoaderMemoryError
from workers.training.loaders import Loaders
from workers.training.pinned import Copies, Copy, can_be_copied_ahead
from workers.training.probe import Probe
from workers.training.reading import Reader, Wanted
from workers.training.rows import tensors_in

WAIT_SLICE_S = 1.0
MAX_AHEAD_BYTES = 256 * 2**20
MAX_CHANGES = 16
MAX_DEATHS = 3
HEALING_ROUNDS = 1_000
"""Rounds after which a loader that was killed counts no longer."""

_DRAWN_BESIDE = "the data are random, and the numbers for them were drawn beside those of training"


class Feed:
    """Micro-batches of ``train_data`` by what they are, so that whoever reads them, they are the same.

    For the training thread; ``place`` and ``changes`` for any. ``is_on_trial``: this round is one of those by which
    ways to read are compared, so that its seconds tell little of the rounds to come.
    """

    def __init__(self, reader: Reader, device: torch.device, choice: LoaderChoice) -> None:
        self._reader = reader
        self._choice = choice
        self._fleet = Fleet(reader, is_pinning=device.type == "cuda")
        self._copies = Copies(device) if device.type == "cuda" else None
        self._copy: tuple[Wanted, Copy] | None = None
        self._probe = Probe()
        self._way = INLINE
        self.is_on_trial = False
        self._loaders: Loaders | None = None  # who reads in this way
        self._coming: Iterator[Wanted] = iter(())
        self._pending: dict[Wanted, Future[Batch]] = {}
        self._awaited: Wanted | None = None
        self._untouched: tuple[int, int] | None = (
            None  # what the generators are unless a reading thread draws from them
        )
        self._batch_bytes = 0
        self._num_deaths = self._num_rounds = 0
        self._changes: tuple[LoaderChange, ...] = ()
        self._told = ""

    def begin(self, coming: Iterator[Wanted]) -> None:
        """A round begins; ``coming`` are its micro-batches, and after them those of rounds to come as far as known.

        What was read ahead and is not among the next of them is dropped.
        """
        if self._reader.batcher.is_plain:
            return
        self._ready_fleet()
        self.is_on_trial = self._choice.tried is not None and self._is_ready(self._choice.tried)
        ways = (self._choice.way, self._choice.kept)  # what is on trial may have yet to start
        self._way = next((way for way in ways if self._is_ready(way)), INLINE)
        loaders = self._fleet.of(self._way)
        if loaders is not self._loaders:  # those before may have ended, and answer no more
            self.drop()
        self._loaders = loaders
        if loaders is None:
            return
        self._coming = coming
        following = list(islice(coming, self._num_ahead(self._way)))
        for wanted in [wanted for wanted in self._pending if wanted not in following]:
            self._pending.pop(wanted).cancel()
        if self._copy is not None and self._copy[0] not in following:
            self._copy = None
        for wanted in following:
            self._read_ahead(loaders, wanted)
        # Where a round is drawn again it comes before what was read of the next.
        self._pending = {wanted: self._pending[wanted] for wanted in following if wanted in self._pending}

    def take(self, wanted: Wanted, check: Callable[[], None]) -> Batch:
        """A micro-batch on the device; ``check`` is called while it is waited for, and may raise to leave.

        Changes the random generators. Raises DataError, whatever signals a lack of memory, and what ``check`` raises.
        """
        batch = self._copied(wanted)
        if batch is None:
            future = self._pending.pop(wanted, None)
            if future is None:
                return self._reader.batcher.moved(self._read(wanted))
            self._top_up()
            batch = self._reader.batcher.moved(self._answer(future, wanted, check))
        self._copy_ahead()
        return batch

    def committed(self) -> None:
        """A round is committed, its optimizer has drawn what it draws: this thread draws nothing until the next."""
        self._untouched = (num_seedings(), fingerprint()) if self._way.has_thread else None

    def spent(self, waited_s: float, compute_s: float, num_samples: int) -> None:
        """Tell what an ordinary round took: seconds of waiting for data, and of computing."""
        if self._reader.batcher.is_plain or num_samples == 0:
            return
        self._num_rounds += 1
        if self._num_rounds >= HEALING_ROUNDS:
            self._num_rounds = self._num_deaths = 0
        choice, cost = self._choice, RoundCost(waited_s=waited_s, compute_s=compute_s, num_samples=num_samples)
        if choice.is_probing and (reading := self._probe.round(cost)) is not None:
            choice.probed(reading)
        is_ready = choice.tried is None or self._is_ready(choice.tried)
        if self._way == choice.way or not is_ready:
            self._settle(choice.measured(cost, is_ready=is_ready))

    def interrupted(self) -> None:
        """Another plan is in force, or another group."""
        self._choice.interrupted()

    def drop(self) -> None:
        """Forget what was read ahead; the next round asks anew."""
        for future in self._pending.values():
            future.cancel()
        self._pending, self._coming, self._copy, self._untouched = {}, iter(()), None, None

    def end(self) -> None:
        """Nothing is read any more; loaders end."""
        self.drop()
        self._fleet.keep()

    def place(self) -> str:
        """The sample that the training thread reads or waits for, such as ``train_data[17]``. Any thread."""
        wanted, loaders = self._awaited, self._loaders
        told = loaders.place(wanted) if wanted is not None and loaders is not None else ""
        return told or self._reader.batcher.turnstile.place.told()

    def changes(self) -> tuple[LoaderChange, ...]:
        """The newest changes of who reads. Any thread."""
        return self._changes

    def _is_ready(self, way: Way) -> bool:
        return way == INLINE or self._fleet.of(way) is not None

    def _num_ahead(self, way: Way) -> int:
        most = 2 * max(1, way.num_processes)
        return most if self._batch_bytes == 0 else max(1, min(most, MAX_AHEAD_BYTES // self._batch_bytes))

    def _top_up(self) -> None:
        if self._loaders is not None and (wanted := next(self._coming, None)) is not None:
            self._read_ahead(self._loaders, wanted)

    def _read_ahead(self, loaders: Loaders, wanted: Wanted) -> None:
        if wanted not in self._pending and (self._copy is None or self._copy[0] != wanted):
            self._pending[wanted] = loaders.read(wanted)

    def _read(self, wanted: Wanted) -> Batch:
        if not self._choice.is_probing:
            return self._reader.read(wanted)
        batch = self._probe.read(self._reader, wanted)
        self._batch_bytes = _num_bytes(batch)
        return batch

    def _answer(self, future: Future[Batch], wanted: Wanted, check: Callable[[], None]) -> Batch:
        self._awaited = wanted
        try:
            while not wait([future], WAIT_SLICE_S).done:
                check()
        finally:
            self._awaited = None
        told = ""
        try:
            batch = future.result()
        except LoaderGoneError as error:
            self._lost(error)
        except LoaderMemoryError as error:
            self._give_up(f"memory ran out in one ({error})")
        except Exception as error:
            if not self._way.num_processes:
                raise
            told = error.message if isinstance(error, JobError) else described(error)
        else:
            if not self._is_touched():
                self._batch_bytes = _num_bytes(batch)
                return batch
            self._give_up(_DRAWN_BESIDE)
        # What a process cannot read this one may: the module's globals, open files and devices are here. If it cannot
        # either, its own error is told.
        batch = self._reader.read(wanted)
        if told:
            self._give_up(f"one could not read what can be read inline ({told})")
        return batch

    def _is_touched(self) -> bool:
        untouched, self._untouched = self._untouched, None
        # An evaluation in between seeds them on its own.
        return untouched is not None and untouched[0] == num_seedings() and fingerprint() != untouched[1]

    def _copied(self, wanted: Wanted) -> Batch | None:
        """The batch, if it is on its way to the device already."""
        copy = self._copy
        if copy is None or copy[0] != wanted or self._copies is None:
            return None
        self._copy = None
        self._top_up()
        if not self._is_touched():
            return self._copies.finish(copy[1])
        self._give_up(_DRAWN_BESIDE)
        return self._reader.batcher.moved(self._reader.read(wanted))

    def _copy_ahead(self) -> None:
        """Let the device fetch the next batch while it computes this one."""
        if self._copies is None or self._copy is not None or not self._pending:
            return
        wanted, future = next(iter(self._pending.items()))
        if not future.done() or future.cancelled() or future.exception() is not None:
            return
        if can_be_copied_ahead(batch := future.result()):
            del self._pending[wanted]
            self._copy = wanted, self._copies.begin(batch)

    def _lost(self, error: LoaderGoneError) -> None:
        self._num_deaths += 1
        if self._num_deaths >= MAX_DEATHS:
            self._give_up(f"{error}, the last of {self._num_deaths} that were lost")
            return
        told = f"a loader process is gone: {error}; others are started, and samples read inline until they are there"
        print(told, file=sys.stderr, flush=True)
        self._fleet.end_processes()
        self._way, self._loaders = INLINE, None
        self.drop()

    def _give_up(self, reason: str) -> None:
        way = self._way
        self._way, self._loaders = INLINE, None
        self.drop()
        self._settle(self._choice.cannot(way, reason))

    def _ready_fleet(self) -> None:
        """Have those there that are in force, and those that are on trial."""
        choice = self._choice
        while True:
            tried = choice.tried
            try:
                num = self._fleet.keep(choice.kept, tried or INLINE, batch_bytes=self._batch_bytes)
            except NoLoadersError as error:
                self._settle(choice.cannot(error.way, str(error)))
                continue
            if tried is not None and 0 < num < tried.num_processes:
                choice.fewer(num)
            return

    def _settle(self, verdict: Verdict | None) -> None:
        """Tell what was settled on; where nothing is new since it was told last, it is not told again."""
        if verdict is None or (verdict.before == verdict.after and verdict.reason == self._told):
            return
        self._told = verdict.reason
        print(f"reading samples: {verdict.reason}", flush=True)
        number = 1 + (self._changes[-1].n if self._changes else 0)
        change = LoaderChange(
            n=number,
            before=str(verdict.before),
            after=str(verdict.after),
            reason=verdict.reason,
            time=time.time(),
            compared=verdict.compared,
            cost_s=verdict.cost_s,
        )
        self._changes = (*self._changes, change)[-MAX_CHANGES:]


def _num_bytes(batch: Batch) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))

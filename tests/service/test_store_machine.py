"""The store under every order of commands, reconcilers that take over, stale rows and repeated snapshots."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import ClassVar, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from service.records import JobRow, Scale, Transition
from service.states import ENDED_STATES, PLACED_STATES, JobState, Move, Verb, command, is_allowed
from service.store.opening import Store, open_store
from service.store.port import FencedOutError, StaleRowError
from tests.service.given import BATCH, Clock, log, record, row, snapshot, spec
from workers.errors import Reason

T = TypeVar("T")
PIECE = b"twelve bytes\n"


class Machine(RuleBasedStateMachine):
    """A model beside the store: the state of each job, and which rounds its attempt has told."""

    template: ClassVar[Path]
    rows = Bundle("rows")  # rows as somebody read them once, fresh or stale
    fences = Bundle("fences")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.mkdtemp(prefix="concertina-machine-")
        file = shutil.copy(self.template, self.folder)
        self.clock = Clock()
        self.store: Store = open_store(f"sqlite:///{file}", self.clock)
        self.states: dict[str, JobState] = {}
        self.versions: dict[str, int] = {}
        self.rounds: dict[tuple[str, int], int] = {}
        self.fence = 0

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    def is_current(self, job: JobRow) -> bool:
        return self.versions.get(job.id) == job.version

    def note(self, job: JobRow) -> JobRow:
        self.states[job.id], self.versions[job.id] = job.state, job.version
        return job

    @initialize(target=fences)
    def begin(self) -> int:
        return self.take_over()

    @rule(target=fences)
    def another_reconciler_takes_over(self) -> int:
        return self.take_over()

    def take_over(self) -> int:
        self.clock.advance(100)
        fence = self.run(self.store.reconciler.take_lease(f"r{self.clock.now_s}", 50))
        assert fence is not None
        assert fence > self.fence
        self.fence = fence
        return fence

    @rule(target=rows)
    def submit(self) -> JobRow:
        return self.note(self.run(self.store.jobs.submit(spec())).job)

    @rule(target=rows, job=rows)
    def read_again(self, job: JobRow) -> object:
        found = self.run(self.store.jobs.job(job.id))
        assert (found is None) == (job.id not in self.states)
        return multiple() if found is None else found

    @rule(target=rows, job=rows, verb=st.sampled_from(Verb), is_fresh=st.booleans())
    def user(self, job: JobRow, verb: Verb, is_fresh: bool) -> object:
        wanted = command(verb, job.state, job.attempt)
        if not isinstance(wanted, Move):
            return multiple()
        try:
            moved = self.run(self.store.jobs.command(job, wanted, is_fresh_start=is_fresh))
        except StaleRowError:
            assert not self.is_current(job)
            return multiple()
        assert self.is_current(job)
        return self.note(moved)

    @rule(target=rows, job=rows, size=st.integers(1, 4))
    def user_scales(self, job: JobRow, size: int) -> object:
        try:
            scaled = self.run(self.store.jobs.set_scale(job, Scale(min=1, max=4, pinned=size)))
        except StaleRowError:
            assert not self.is_current(job)
            return multiple()
        assert self.is_current(job)
        return self.note(scaled)

    @rule(target=rows, job=rows, fence=fences, to=st.sampled_from(JobState), reason=st.sampled_from([None, *Reason]))
    def reconciler_moves(self, job: JobRow, fence: int, to: JobState, reason: Reason | None) -> object:
        if not is_allowed(job.state, to):
            return multiple()
        is_start = (job.state, to) == (JobState.QUEUED, JobState.STARTING)
        call = (
            self.store.reconciler.admit(job, 1, fence)
            if is_start
            else self.store.reconciler.transition(job, to, Transition(reason=reason), fence)
        )
        try:
            moved = self.run(call)
        except FencedOutError:
            assert fence != self.fence
            return multiple()
        except StaleRowError:
            assert not self.is_current(job)
            return multiple()
        assert fence == self.fence
        assert self.is_current(job)
        assert moved.attempt == job.attempt + is_start
        return self.note(moved)

    @rule(target=rows, job=rows, fence=fences)
    def new_term(self, job: JobRow, fence: int) -> object:
        try:
            return self.run(self.store.reconciler.new_term(job, fence))
        except (FencedOutError, StaleRowError):
            return multiple()

    @rule(job=rows, fence=fences, num_new=st.integers(0, 3), num_repeated=st.integers(0, 2))
    def fold(self, job: JobRow, fence: int, num_new: int, num_repeated: int) -> None:
        if job.attempt == 0:
            return
        key = (job.id, job.attempt)
        last = self.rounds.get(key, 0)
        records = [record(r) for r in range(max(1, last + 1 - num_repeated), last + num_new + 1)]
        told = snapshot(
            job,
            records,
            logs=(log(PIECE * (last + num_new)),),
            timeline=tuple(row(f"t{n}") for n in range(last + num_new)),
        )
        now = self.run(self.store.jobs.job(job.id))
        try:
            acked = self.run(self.store.reconciler.fold(told, fence))
        except FencedOutError:
            assert fence != self.fence
        except StaleRowError:
            assert now is None or (now.attempt, now.term) != (job.attempt, job.term)
        else:
            assert fence == self.fence
            self.rounds[key] = last + num_new
            assert acked.rounds[1] == last + num_new
            assert acked.log_offsets.get("1.0", 0) == len(PIECE) * (last + num_new)
            assert len(acked.timeline) == last + num_new

    @precondition(lambda self: any(state in ENDED_STATES for state in self.states.values()))
    @rule(job=rows)
    def delete(self, job: JobRow) -> None:
        if job.state not in ENDED_STATES:
            return
        try:
            self.run(self.store.jobs.delete(job))
        except StaleRowError:
            assert not self.is_current(job)
        else:
            assert self.is_current(job)
            del self.states[job.id], self.versions[job.id]

    @invariant()
    def events_tell_exactly_what_happened(self) -> None:
        for job_id, state in self.states.items():
            job = self.run(self.store.jobs.job(job_id))
            assert job is not None
            assert (job.state, job.version) == (state, self.versions[job_id])
            assert job.num_current == 0 or state in PLACED_STATES
            events = self.run(self.store.jobs.events(job_id, 0, 1000))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert events[-1].to is state
            sources = [event.source for event in events]
            assert sources == [None, *(event.to for event in events[:-1])]
            assert all(e.source is None or is_allowed(e.source, e.to) for e in events)
            assert sum(event.to is JobState.STARTING for event in events) == job.attempt

    @invariant()
    def no_point_is_missing_or_double(self) -> None:
        for job_id in self.states:
            job = self.run(self.store.jobs.job(job_id))
            assert job is not None
            points = self.run(self.store.telemetry.points(job_id))
            rounds = [round(1 / point.values["loss"]) for point in points]
            assert rounds == list(range(1, len(rounds) + 1))
            told = [last for (told_id, attempt), last in sorted(self.rounds.items()) if told_id == job_id and last]
            assert len(rounds) == (told[-1] if told else 0)
            assert job.samples in (0, *(BATCH * last for last in range(1, max(told, default=0) + 1)))


def test_the_store_keeps_its_promises_in_every_order(migrated_file: Path) -> None:
    Machine.template = migrated_file
    machine = Machine.TestCase
    machine.settings = settings(
        max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine().runTest()

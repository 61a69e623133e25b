"""A reconciler to be disturbed, the use cases that command it, and the oracle at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.services import Services, build_services
from service.settings import Settings
from service.states import ENDED_STATES, JobState
from service.sweep_records import ENDED_SWEEPS
from tests.faults.crash_points import CrashPoint
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.noted import noted_spec, noted_sweep
from tests.faults.oracle import Case, judge
from tests.faults.processes import RECONCILER, Installation

END_S = 120.0
"""A whole test of a reconciler that dies takes 9 s where nothing else runs, and 54 s at load 9."""


@dataclass
class Scene:
    """An installation without API processes: the test itself commands, by the same use cases."""

    installation: Installation
    services: Services
    accepted: dict[str, str] = field(default_factory=dict)
    schedules: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    is_tending: bool = False

    async def submit(self, **changes: Any) -> str:
        number = len(self.accepted) + 1
        key = f"key-{number}"
        spec = noted_spec(number) | {"steps": 12, "workers": {"min": 1, "max": 2}} | changes
        self.accepted[key] = (await self.services.jobs.submit(spec, key)).job.id
        return self.accepted[key]

    async def search(self, **changes: Any) -> str:
        """Submit a sweep of short jobs."""
        number = len(self.accepted) + 1
        key = f"key-{number}"
        self.accepted[key] = (await self.services.sweeps.create(noted_sweep(number, **changes), key)).sweep.id
        return self.accepted[key]

    async def has_searched(self, sweep_id: str) -> bool:
        return (await self.services.sweeps.get(sweep_id)).state in ENDED_SWEEPS

    async def has_lost(self, job_id: str) -> bool:
        """Whether it is written down that a worker of this job was lost."""
        return job_id in {loss.job_id for loss in await self.services.store.nodes.losses(since=0.0)}

    async def state(self, job_id: str) -> JobState:
        return (await self.services.jobs.get(job_id)).state

    async def is_in(self, job_id: str, *states: JobState) -> bool:
        return await self.state(job_id) in states

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something holds, or the reconciler is dead and nobody starts it again."""
        deadline_s = time.monotonic() + END_S
        while not await holds() and (self.is_tending or self.installation.is_alive(RECONCILER)):
            assert time.monotonic() < deadline_s, f"{what} did not come; {self.installation.told()}"
            if self.is_tending:
                self.installation.tend()
            await asyncio.sleep(0.01)

    async def running(self, **changes: Any) -> str:
        """A job that will run for a while, once it runs."""
        job_id = await self.submit(**{"steps": 150, **changes})

        async def runs() -> bool:
            return await self.state(job_id) is JobState.RUNNING

        await self.until("a running job", runs)
        return job_id

    async def struck(self, point: CrashPoint) -> None:
        """Wait until the reconciler has come to a crash point, and is dead where it dies of it."""

        async def is_over() -> bool:
            is_dead = point.error is not None or not self.installation.is_alive(RECONCILER)
            return is_dead and self.installation.has_struck(RECONCILER, point)

        await self.until(f"the crash point {point}", is_over)
        assert await is_over(), f"the reconciler died elsewhere: {self.installation.log(RECONCILER)[-3000:]}"

    async def judged(self) -> None:
        """With a reconciler that is not disturbed everything comes to its end; then the oracle is asked."""
        self.is_tending = True

        async def is_over() -> bool:
            counts = await self.services.jobs.count_by_state()
            is_still = all(state in ENDED_STATES for state, count in counts.items() if count)
            is_decided = not (await self.services.schedules.page(state="ACTIVE")).schedules
            if not is_still or not is_decided or await self.installation.cluster.names():
                return False
            evidence = gather(self.installation.settings)
            is_left = evidence.stray_bundles or evidence.half_deleted or evidence.folders - evidence.jobs.keys()
            return not is_left and all(sweep.is_over for sweep in evidence.sweeps.values())

        await self.until("the end of all jobs, actors, deletions, and bytes of no bundle or job", is_over)
        evidence = gather(self.installation.settings)
        # Of runs that all come to the same none is better, though one may seem to be cheaper, and none is missing.
        assert {state for sweep in evidence.sweeps.values() for state in sweep.promotions} <= {"KEPT", "PROMOTED"}
        case = Case(
            evidence=evidence,
            notes=read_diary(self.installation.diary),
            saves=read_saves(self.installation.diary),
            accepted=self.accepted,
            deleted=self.deleted,
            remains=await self.installation.cluster.remains(),
        )
        assert_nothing_found(judge(case))
        for schedule_id in self.schedules:
            runs = (await self.services.schedules.runs(schedule_id)).runs
            assert [run.outcome for run in runs] == ["STARTED", "STARTED"]
        events = await self.services.store.nodes.cluster_events(100)
        told = [event.text for event in events if event.node_id is not None]
        assert len(told) == len(set(told)), f"what was decided about nodes is told twice: {told}"


@pytest.fixture
async def scene(settings: Settings) -> AsyncIterator[Scene]:
    quick = settings.model_copy(update={"leader_lease_s": 1.0})
    with Installation(quick, names=("cluster",)) as installation:
        services = build_services(quick)
        yield Scene(installation, services)
        await services.store.close()

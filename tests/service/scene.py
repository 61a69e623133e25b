"""A reconciler at work over a real store and a cluster in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.cost import Prices
from service.reconciler.launching import Launching
from service.reconciler.listing import Listing
from service.reconciler.news import News
from service.reconciler.pursuit import Office
from service.reconciler.reaper import Premises, Reaper
from service.reconciler.reconciler import Reconciler
from service.reconciler.sight import StorageSight
from service.records import JobRow
from service.settings import Settings
from service.states import Already, Illegal, JobState, Verb, command
from service.store.opening import Store
from service.store.port import DatabaseAwayError
from tests.fakes import FakeCluster
from tests.service.given import spec
from workers.assignment import JobKey


@dataclass
class Scene:
    """A reconciler over a real store and a cluster in memory."""

    store: Store
    settings: Settings
    fence: int
    cluster: FakeCluster = field(default_factory=FakeCluster)
    sight: StorageSight | None = None
    clock: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.reconciler = self._reconciler()

    @property
    def scratch(self) -> Path:
        return self.settings.home / "scratch"

    def sees_storage(self) -> None:
        """The cluster is somebody else's: its nodes must show that they see the storage."""
        self.sight = StorageSight(self.cluster, Path(self.settings.storage_url))
        self.reconciler = self._reconciler()

    def _reconciler(self) -> Reconciler:
        self.listing = Listing(self.store.reconciler, self.settings.storage_url, self.fence)
        self.news = News()
        office = Office(
            store=self.store.reconciler,
            cluster=self.cluster,
            launching=Launching(self.settings, self.store.reconciler, self.scratch),
            listing=self.listing,
            fence=self.fence,
            storage=self.settings.storage_url,
            liveness_s=1.0,
            place_s=self.settings.place_s,
            max_demand_workers=4,
            spares_per_node=1,
            prices=Prices.of(self.settings),
            news=self.news,
            clock=self.clock,
            monotonic_s=self.monotonic_s,
        )
        return Reconciler(office, Reaper(self.premises), self.sight)

    @property
    def premises(self) -> Premises:
        return Premises(
            store=self.store.reconciler,
            cluster=self.cluster,
            listing=self.listing,
            fence=self.fence,
            storage=self.settings.storage_url,
            scratch=self.scratch,
            bounds=self.settings.scratch_bounds,
            bundle_keep_s=self.settings.bundle_keep_s,
        )

    async def restart(self) -> None:
        """Another process takes over."""
        await self.reconciler.settle(5)
        self.reconciler = self._reconciler()
        await self.reconciler.begin()

    async def submit(self, **changes: object) -> JobRow:
        return (await self.store.jobs.submit(spec(**changes))).job

    async def look(self) -> None:
        """Store what the controllers tell by now: they are asked after the steps that are under way."""
        await self.reconciler.settle(5)
        await self.reconciler.tick()
        await self.reconciler.settle(5)

    async def job(self, job: JobRow) -> JobRow:
        row = await self.store.reconciler.job(job.id)
        assert row is not None
        return row

    async def until(self, job: JobRow, holds: Callable[[JobRow], bool]) -> JobRow:
        """Tick on, as the service does, also where the database of a busy machine kept one turn waiting."""
        told: JobRow | DatabaseAwayError | None = None
        for _ in range(1500):
            try:
                await self.reconciler.tick()
                told = await self.job(job)
            except DatabaseAwayError as error:
                told = error
            else:
                if holds(told):
                    return told
            await asyncio.sleep(0.005)
        raise AssertionError(f"never came true; last: {told!r}")

    async def until_state(self, job: JobRow, *states: JobState) -> JobRow:
        return await self.until(job, lambda row: row.state in states)

    async def say(self, job: JobRow, verb: Verb) -> None:
        row = await self.job(job)
        wanted = command(verb, row.state, row.attempt)
        assert not isinstance(wanted, Already | Illegal)
        await self.store.jobs.command(row, wanted, is_fresh_start=False)

    async def passed(self, job: JobRow) -> list[str]:
        return [event.to.value for event in await self.store.jobs.events(job.id, 0, 100)]


def last_key(scene: Scene) -> JobKey:
    return scene.cluster.launches[-1][0]

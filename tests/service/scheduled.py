"""What tests of schedules begin with: specs, a leader that fires, and the ends of children."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from service.configuration_records import ConfigurationRow
from service.firing import decide_trigger
from service.reconciler.firing import Schedules
from service.records import JobRow, Transition
from service.schedule_records import ScheduleRow
from service.schedule_spec import ScheduleSpec, parse_schedule_spec
from service.states import JobState
from service.store.opening import Store
from service.targets import Target
from tests.service.given import START_S, Clock, leader
from tests.service.swept import Swept, sweep_document

JOB = {"entrypoint": "workers.recipes.digits:build", "steps": 10}
SWEEP = {key: value for key, value in sweep_document().items() if key != "name"}
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0


def schedule_document(**changes: Any) -> dict[str, Any]:
    """Every full hour in UTC."""
    return {"name": "nightly", "cron": "0 * * * *", "time_zone": "UTC", "target": {"job": JOB}, **changes}


def schedule_spec(configuration: ConfigurationRow | None = None, **changes: Any) -> tuple[ScheduleSpec, Target]:
    return parse_schedule_spec(schedule_document(**changes), at(7), configuration=configuration)


def at(hour: int, minute: int = 0, day: int = 0) -> float:
    """A moment of the day on which the tests' clock starts, or some days later."""
    begin = datetime.fromtimestamp(START_S, UTC).replace(hour=hour, minute=minute, second=0)
    return begin.timestamp() + day * DAY_S


async def firing_at_seven(store: Store, clock: Clock) -> Firing:
    """It is 07:06 in UTC."""
    clock.now_s = at(7, 6)
    return Firing(store, clock, await leader(store))


class Firing:
    """A leader over a real store, whose clock the test moves."""

    def __init__(self, store: Store, clock: Clock, fence: int) -> None:
        self.store, self.clock, self.fence = store, clock, fence
        self.schedules = Schedules(store.reconciler, fence, 0.5, clock, lambda: None)

    async def create(self, **changes: Any) -> ScheduleRow:
        return (await self.store.schedules.create(*schedule_spec(**changes))).schedule

    async def at(self, time_s: float) -> None:
        """Let it be that late, and catch up."""
        self.clock.now_s = time_s
        await self.catch_up()

    async def catch_up(self) -> None:
        """Look until there is nothing to do."""
        while await self.schedules.turn() == 0.0:
            pass

    async def row(self, schedule: ScheduleRow) -> ScheduleRow:
        found = await self.store.schedules.schedule(schedule.id)
        assert found is not None
        return found

    async def told(self, schedule: ScheduleRow) -> list[tuple[str, str]]:
        """Nominal times with their outcomes, the first one first."""
        runs = await self.store.schedules.runs(schedule.id, 1000)
        return [(f"{datetime.fromtimestamp(run.nominal_at, UTC):%H:%M}", run.outcome) for run in reversed(runs)]

    async def children(self, schedule: ScheduleRow) -> list[str]:
        """In the order of their nominal times."""
        runs = await self.store.schedules.runs(schedule.id, 1000)
        return [run.child_id for run in reversed(runs) if run.child_id is not None]

    async def run(self, job_id: str) -> JobRow:
        """The child is RUNNING from now on."""
        job = await self.store.reconciler.job(job_id)
        assert job is not None
        if job.state is JobState.QUEUED:
            job = await self.store.reconciler.admit(job, 1, self.fence)
            job = await self.store.reconciler.transition(job, JobState.RUNNING, Transition(), self.fence)
        return job

    async def trigger(self, schedule: ScheduleRow) -> None:
        """A person asks for a run now."""
        due = await self.store.schedules.due(schedule.id)
        assert due is not None
        await self.store.schedules.fire(due.schedule, decide_trigger(due, self.clock()))

    def swept(self, sweep_id: str) -> Swept:
        """The child whose search and workers the test plays."""
        return Swept(self.store, self.clock, self.fence, sweep_id)

    async def end(self, job_id: str, state: JobState = JobState.SUCCEEDED) -> None:
        """The child runs, and comes to its end."""
        await self.store.reconciler.transition(await self.run(job_id), state, Transition(), self.fence)

"""An installation that a test fills by the store's own functions, as the reconciler would."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.folders import checkpoints_place
from service.records import Autoscaling, ClusterView, Duty, JobRow, NodeMark, NodeView, Transition
from service.replica import Claim
from service.states import JobState, Move
from service.store.opening import Store
from tests.browser.history import NODES, RACK, Course, History
from tests.stored_checkpoint import store_checkpoint
from workers.spec import parse_job_spec
from workers.status import JobSnapshot, LogChunk
from workers.storage_urls import open_storage

WEIGHTS_BYTES = b"weights"


@dataclass
class Clock:
    """Time that the test moves; Unix seconds."""

    now_s: float

    def __call__(self) -> float:
        return self.now_s


class Sample:
    """Fills a store; ``fence`` is the reconciler's, 0 until ``begin``."""

    def __init__(self, store: Store, clock: Clock, storage: str, fence: int = 0) -> None:
        self.store = store
        self.clock = clock
        self.storage = storage
        self.fence = fence

    async def begin(self) -> None:
        """Become the reconciler."""
        fence = await self.store.reconciler.take_lease("test", 10**9)
        await Claim(self.store.reconciler, self.storage).take()
        assert fence is not None
        self.fence = fence

    async def submit(self, course: Course) -> JobRow:
        """A queued job."""
        document = {
            "name": course.name,
            "entrypoint": "workers.recipes.digits:build",
            "steps": course.steps,
            "workers": {"min": 1, "max": 4},
            "config": {"hidden": 128},
            "checkpoint": {"metric": "eval.accuracy"},
            **course.spec,
        }
        return (await self.store.jobs.submit(parse_job_spec(document))).job

    async def move(self, job: JobRow, to: JobState, change: Transition | None = None) -> JobRow:
        """One transition by the reconciler, of the row as it is now."""
        row = await self.store.reconciler.job(job.id)
        assert row is not None
        return await self.store.reconciler.transition(row, to, change or Transition(), self.fence)

    async def start(self, job: JobRow, workers: int) -> JobRow:
        """Admit a job and let it run."""
        self.clock.now_s += 0.4
        admitted = await self.store.reconciler.admit(job, workers, self.fence)
        self.clock.now_s += 3.1
        return await self.move(admitted, JobState.RUNNING)

    async def run(self, course: Course) -> JobRow:
        """A job with its whole history up to ``course.upto``, ended where the course says so."""
        job = await self.start(await self.submit(course), course.sizes[0][1])
        told = History(course, job, self.clock.now_s)
        snapshot = told.snapshot(course.upto)
        await self.store.reconciler.fold(
            replace(snapshot, records=(), logs=(), timeline=(), checkpoints=()), self.fence
        )
        self.clock.now_s = max(self.clock.now_s, snapshot.records[-1].time) if snapshot.records else self.clock.now_s
        await self._fold(snapshot)
        row = await self.store.reconciler.job(job.id)
        assert row is not None
        await self.store.reconciler.set_desired(row, course.sizes[-1][1], self.fence)
        if course.ends is JobState.SUCCEEDED:
            await self._fold(told.ending(snapshot))
            await self.move(row, JobState.SUCCEEDED)
        found = await self.store.reconciler.job(job.id)
        assert found is not None
        return found

    async def _fold(self, snapshot: JobSnapshot) -> None:
        """Store what the snapshot tells; its newest two checkpoints are in storage, as a worker leaves them."""
        for info in snapshot.checkpoints[-2:]:
            place = open_storage(checkpoints_place(self.storage, snapshot.job_id))
            store_checkpoint(place, info, {"w": WEIGHTS_BYTES})
        await self.store.reconciler.fold(snapshot, self.fence)

    async def log(self, job: JobRow, text: str) -> None:
        """A line from a worker that has not written before."""
        row = await self.store.reconciler.job(job.id)
        assert row is not None
        chunk = LogChunk(worker_id="1.8", offset=0, rank=0, time=self.clock.now_s, data=text.encode())
        now = History(Course(row.name, 5000, 0, [(0, 3)]), row, self.clock.now_s).snapshot(0)
        told = replace(now, logs=(chunk,), timeline=(), cursor=row.samples, total_samples=row.total_samples)
        await self.store.reconciler.fold(told, self.fence)

    async def command(self, job: JobRow, move: Move) -> JobRow:
        """A user's command on the job as it is now."""
        row = await self.store.jobs.job(job.id)
        assert row is not None
        return await self.store.jobs.command(row, move)

    async def quarantine(self, reason: str) -> None:
        """The service takes node alder out of use."""
        mark = NodeMark(node_id=NODES[0], duty=Duty.QUARANTINED, actor="service", reason=reason, since=self.clock.now_s)
        await self.store.reconciler.quarantine(mark, f"Node alder is quarantined: {reason}.", self.fence)

    async def cluster(self, *, is_up: bool = True, autoscaling: Autoscaling | None = None) -> None:
        """What the reconciler last saw of Ray."""
        nodes = tuple(
            NodeView(
                node_id=node_id,
                name=name,
                is_alive=True,
                total={"cpus": 4, "gpus": 0, "memory_bytes": 16e9},
                free={"cpus": free, "gpus": 0, "memory_bytes": 11e9},
                rack=RACK,
            )
            for node_id, name, free in zip(NODES, ("alder", "birch"), (1.0, 2.0), strict=True)
        )
        view = ClusterView(
            is_up=True, address="127.0.0.1:6379", ray_version="2.60.0", nodes=nodes, autoscaling=autoscaling
        )
        if not is_up:
            view = replace(view, is_up=False, error="no answer from 127.0.0.1:6379 within 5 s")
        await self.store.reconciler.put_cluster(view, self.fence)

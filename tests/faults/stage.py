"""Workers of one attempt that train in step with each other, in memory and in real time, and note what they do.

The workers are those of the control simulation: collectives, generations, saves and losses are as there.
Besides, they hand over records, leave checkpoints in storage that the service finds, and write the diary.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field, replace

from tests.control.simulation import Group, SimWorker, World
from tests.faults.diary import Note, Saved, line_of
from tests.stored_checkpoint import Hasty, store_checkpoint
from workers.assignment import JobKey
from workers.checkpoints import checkpoint_name
from workers.control.launch import Launch
from workers.local_storage import LocalStorage
from workers.measures import BuildInfo
from workers.plan import MemberSource, Plan, split_batch
from workers.status import Acknowledged, CheckpointInfo, Phase, RoundRecord, WorkerStatus

RESTING = frozenset({Phase.READY, Phase.HELD, Phase.DONE, Phase.SAVED, Phase.STOPPED, Phase.FAILED})
"""In which a worker waits for a word, and tells that it does."""

Stored = list[tuple[CheckpointInfo, tuple[int, ...]]]


@dataclass
class Player(SimWorker):
    """One worker; ``told`` are its records that the store has not acknowledged, as far as it has heard."""

    told: list[RoundRecord] = field(default_factory=list)
    saved: list[CheckpointInfo] = field(default_factory=list)
    num_rests: int = 0
    node_id: str = field(kw_only=True)

    def to(self, phase: Phase) -> None:
        super().to(phase)
        self.num_rests += phase in RESTING

    def answer(self, term: int, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> WorkerStatus | None:
        """The status with what the simulation leaves out; None for a term that was superseded."""
        status = self.poll(term, plan)
        if status is None:
            return None
        assert isinstance(self.world, Stage)
        self.told = [record for record in self.told if record.key > acked.rounds]
        return replace(
            status,
            cursor=None if self.round is None else self.round * self.world.batch,
            build=None if self.phase is Phase.BUILD else self.world.build_info(self.node_id),
            records=tuple(self.told) if wants_records else (),
            checkpoints=tuple(info for info in self.saved if info.is_final or info.path not in acked.checkpoints),
        )

    def _sync(self, group: Group) -> None:
        super()._sync(group)
        source = group.plan.source
        if isinstance(source, MemberSource):
            giver = self.world.all_workers[source.worker_id]
            assert isinstance(giver, Player)
            # As the trainer does: whoever came may be the only one left to tell of earlier rounds.
            self.told = sorted({r.key: r for r in [*self.told, *giver.told]}.values(), key=lambda r: r.key)


@dataclass
class Stage(World):
    """What the workers of an attempt share. ``saved`` is the job's own storage, over all its attempts."""

    key: JobKey = field(kw_only=True)
    launch: Launch = field(kw_only=True)
    saved: Stored = field(kw_only=True)
    diary: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self.storage = self.saved

    @property
    def batch(self) -> int:
        return self.launch.spec.batch.global_size

    @property
    def furthest(self) -> int:
        """The round to which the first of its workers has come."""
        return max((worker.round or 0 for worker in self.workers.values()), default=0)

    def build_info(self, node_id: str) -> BuildInfo:
        return BuildInfo(
            num_train=self._num_samples,
            num_eval=0,
            num_parameters=1,
            total_samples=self.num_rounds * self.batch,
            device="cpu",
            device_seconds={},
            node_id=node_id,
            pid=os.getpid(),
        )

    @property
    def _num_samples(self) -> int:
        return int(str(self.launch.spec.config.get("num_samples", 40)))

    def given_up(self, term: int) -> int | None:
        """Only the controller in office has a rendezvous, and who waits there in vain is halted."""
        return 0 if term == self.term else None

    def come(self, worker_id: str, node_id: str) -> Player:
        """A worker starts to build."""
        assert worker_id not in self.all_workers, "worker ids are never used twice"
        to_build = self.rng.randint(1, 8)
        player = Player(id=worker_id, world=self, phase_since=self.now, to_build=to_build, node_id=node_id)
        self.workers[worker_id] = self.all_workers[worker_id] = player
        return player

    def go(self, worker_id: str, *, should_save: bool = False) -> None:
        """A worker ends, in order (then it may save its last commit) or not."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            if should_save and worker.round:
                self.save(worker, is_final=False)
            self.kill(worker_id)

    def play(self) -> None:
        """Every worker takes one small step."""
        self.now = time.monotonic()
        order = list(self.workers.values())
        self.rng.shuffle(order)
        for worker in order:
            if worker.id in self.workers:
                worker.step()

    def token(self, worker: SimWorker, group: Group, plan: Plan) -> int:
        """A member commits a round: it keeps a record and writes its line."""
        made = super().token(worker, group, plan)
        assert isinstance(worker, Player)
        assert worker.round is not None
        worker.told.append(self._record(worker, plan))
        os.write(self.diary, line_of(self._note(worker, plan)))
        return made

    def save(self, worker: SimWorker, *, is_final: bool) -> None:
        """Leave a complete checkpoint in the job's storage."""
        plan, step = worker.held.plan, worker.round
        assert isinstance(worker, Player)
        assert plan is not None
        assert step is not None
        path = checkpoint_name(self.key.attempt, worker.lineage or 0, step, plan.generation)
        info = CheckpointInfo(
            path=path,
            attempt=self.key.attempt,
            lineage=worker.lineage or 0,
            generation=plan.generation,
            round=step,
            step=step,
            cursor=step * self.batch,
            size_bytes=1,
            metric=None,
            is_final=is_final,
            created_at=time.time(),
        )
        store_checkpoint(LocalStorage(self.launch.storage.checkpoints, Hasty()), info)
        noted = Saved(
            job=self.key.job_id,
            attempt=self.key.attempt,
            lineage=worker.lineage or 0,
            generation=plan.generation,
            saved=step,
            time=time.monotonic(),
        )
        os.write(self.diary, line_of(noted))
        worker.saved.append(info)
        self.storage[:] = [kept for kept in self.storage if kept[0].path != path] + [(info, worker.history)]

    def _record(self, worker: Player, plan: Plan) -> RoundRecord:
        assert worker.round is not None
        return RoundRecord(
            lineage=worker.lineage or 0,
            round=worker.round,
            generation=plan.generation,
            plan_id=plan.id,
            cursor=worker.round * self.batch,
            samples=self.batch,
            time=time.time(),
            values={"loss": 1.0 / worker.round, "step_s": 0.01, "workers": float(plan.num_members)},
        )

    def _note(self, worker: Player, plan: Plan) -> Note:
        assert worker.round is not None
        ranked = sorted(plan.members, key=lambda member: member.rank)
        sizes = split_batch(self.batch, [member.weight for member in ranked])
        place = next(n for n, member in enumerate(ranked) if member.worker_id == worker.id)
        first = (worker.round - 1) * self.batch + sum(sizes[:place])
        return Note(
            job=self.key.job_id,
            attempt=self.key.attempt,
            worker=worker.id,
            lineage=worker.lineage or 0,
            generation=plan.generation,
            step=worker.round,
            pid=os.getpid(),
            time=time.monotonic(),
            ids=tuple(i % self._num_samples for i in range(first, first + sizes[place])),
        )


def make_stage(key: JobKey, launch: Launch, saved: Stored, diary: int, seed: int) -> Stage:
    """An attempt without workers yet; ``diary`` is a descriptor to append to."""
    assert launch.spec.steps is not None
    scale = (launch.spec.workers.min, launch.spec.workers.max)
    return Stage(
        random.Random(seed), launch.spec.steps, scale, scale[0], [], key=key, launch=launch, saved=saved, diary=diary
    )

"""Workers in threads of this process and a controller's part, played by the test: no Ray, real gloo."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tests.training.fake_store import FakeStore
from tests.training.rank import FileGate, RankProcess, serve_store
from tests.training.tasks import SCRIPTS, Gate, Script
from workers.assignment import Assignment, JobKey, Storage
from workers.lr import Decay, LrPlan, LrRule
from workers.plan import (
    Cause,
    FreshSource,
    Member,
    MemberSource,
    Plan,
    PlanId,
    Source,
    Switch,
    TimelineKind,
)
from workers.spec import JobSpec
from workers.status import Acknowledged, Phase, RoundRecord, WorkerStatus
from workers.training.session import Session

TERM = 1
WAIT_S = 40.0
num_gpus = 0.0
"""Of each worker whose test does not say: see ``--train-on``."""
_names = itertools.count()


def load_linalg(device: torch.device) -> None:
    """CUDA's is loaded at its first use, which fails in a thread where another's is under way."""
    torch.linalg.qr(torch.eye(2, device=device))


class Group:
    """Sessions by worker id (``1.0``, ``1.1``, ...) and the plan that they were offered last.

    With ``in_processes`` each is a process of its own, whose task is ``tests.training.rank:build`` or the spec's own.
    """

    in_processes = False

    def __init__(self, script: Script, **spec: Any) -> None:
        self.name = f"job-{next(_names)}"
        self.script = SCRIPTS[self.name] = script
        self._folder = tempfile.TemporaryDirectory(prefix="concertina-test-")
        self.root = Path(self._folder.name)
        document = {"name": self.name, "entrypoint": "tests.training.tasks:build", **spec}
        document["config"] = {"script": self.name, "folder": str(self.root)}
        document.setdefault("lr_schedule", {"warmup_fraction": 0.0, "decay": "constant"})
        document["resources"] = {"gpus": num_gpus, **document.get("resources", {})}
        self.spec = JobSpec.model_validate(document)
        self.store = FakeStore()
        self.sessions: dict[str, Session | RankProcess] = {}
        self._served: tuple[Any, bytes] | None = None
        self.records: dict[tuple[int, int], RoundRecord] = {}
        self.plan: Plan | None = None
        self.init_from: str | None = None
        self.env: dict[str, str] = {}
        self.checkpoints, self.output = str(self.root / "checkpoints"), str(self.root / "output")
        self._num_started = 0
        self._tick = threading.Event()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.script.gate is not None:
            self.script.gate.open()
        for session in self.sessions.values():
            session.stop(TERM, save=False)
        ended = [session.wait_ended(WAIT_S) for session in self.sessions.values()]
        del SCRIPTS[self.name]
        self._folder.cleanup()
        assert all(ended), "a training thread did not end"
        for model in self.script.models:
            model.cpu()  # to be compared with others

    def start(self, num_workers: int) -> list[str]:
        """Start more workers and wait until they are ready (or failed)."""
        begun = []
        if self.spec.resources.gpus and not self.in_processes:
            load_linalg(torch.device("cuda"))
        for _ in range(num_workers):
            worker_id = f"{TERM}.{self._num_started}"
            self._num_started += 1
            session = self._session(worker_id)
            self.sessions[worker_id] = session
            session.start()
            begun.append(worker_id)
        self.await_all(lambda s: s.phase is not Phase.BUILD, begun)
        return begun

    def _session(self, worker_id: str) -> Session | RankProcess:
        if not self.in_processes:
            return Session(self.assignment(worker_id), self.store, None)
        if self._served is None:
            self._served = serve_store(self.store)
        return RankProcess(self.assignment(worker_id), *self._served)

    def assignment(self, worker_id: str) -> Assignment:
        return Assignment(
            key=JobKey(job_id=self.name, attempt=1),
            worker_id=worker_id,
            spec=self.spec.model_copy(update={"config": {**self.spec.config, "worker": worker_id}}),
            storage=Storage(checkpoints=self.checkpoints, output=self.output, init_from=self.init_from),
            scratch=str(self.root / "scratch"),
            env=self.env,
        )

    def make_plan(
        self, workers: Sequence[str | Member], *, switch: Switch, source: Source | None = None, **changes: Any
    ) -> Plan:
        """The next plan; another generation unless ``generation`` is given."""
        old = self.plan
        members = tuple(
            w if isinstance(w, Member) else Member(worker_id=w, rank=rank) for rank, w in enumerate(workers)
        )
        values: dict[str, Any] = {
            "id": PlanId(TERM, old.id.n + 1 if old else 1),
            "switch": switch,
            "generation": old.generation + 1 if old else 1,
            "lineage": old.lineage if old else 1,
            "source": source or self.source(),
            "members": members,
            "global_batch": self.spec.batch.global_size,
            "lr": LrPlan(
                lr=self.spec.optimizer.lr,
                base_batch=self.spec.batch.global_size,  # the plain loops that runs are compared with know no scaling
                rule=LrRule(self.spec.batch.lr_rule),
                warmup_fraction=self.spec.lr_schedule.warmup_fraction,
                decay=Decay(self.spec.lr_schedule.decay),
            ),
            "cause": Cause(kind=TimelineKind.RESIZE, actor="test", reason="test"),
        }
        return Plan(**{**values, **changes})

    def source(self) -> Source:
        """The worker that is furthest ahead, or a fresh start."""
        states = [s for s in self.poll().values() if s.round is not None]
        if not states:
            return FreshSource()
        best = max(states, key=lambda s: (s.lineage or 0, s.round or 0))
        return MemberSource(best.worker_id, best.round or 0)

    def offer(self, plan: Plan) -> None:
        """Hand the plan to every worker that lives."""
        self.plan = plan
        for session in self.sessions.values():
            session.poll(TERM, plan, Acknowledged(), False)

    def train(self, workers: Sequence[str | Member], **changes: Any) -> Plan:
        """A plan at once, for workers in no group."""
        plan = self.make_plan(workers, switch=Switch.NOW, **changes)
        self.offer(plan)
        return plan

    def agree(self, workers: Sequence[str | Member], **changes: Any) -> Plan:
        """A plan for the next boundary at which everybody has counted it."""
        plan = self.make_plan(workers, switch=Switch.AGREED, **changes)
        self.offer(plan)
        return plan

    def halt(self, worker_ids: Sequence[str], gate: Gate | None = None) -> None:
        """Make these leave the latest plan's group and wait until they are in none.

        ``gate`` is opened when all are told: whoever is held there cannot leave, and would be the user's failure.
        """
        assert self.plan is not None
        self.store.supersede(f"{TERM}/{self.plan.generation}")
        for worker_id in worker_ids:
            self.sessions[worker_id].halt(TERM, self.plan.id)
        if gate is not None:
            gate.open()
        self.await_all(lambda s: s.generation is None, worker_ids)

    def poll(self) -> dict[str, WorkerStatus]:
        """Every worker's status; keeps the records."""
        statuses = {i: s.poll(TERM, None, Acknowledged(), True) for i, s in self.sessions.items()}
        for status in statuses.values():
            for record in status.records:
                old = self.records.get(record.key)
                if old is None or record.generation >= old.generation:
                    self.records[record.key] = record
        return statuses

    def await_break(self, worker_ids: Sequence[str]) -> dict[str, WorkerStatus]:
        """Wait until one of these has left the latest group for good, then halt the others as a controller does.

        Or until all are done. Peers learn of it by themselves, but not always: gloo now and then loses the error of a
        send.
        """
        for _ in range(int(WAIT_S / 0.005)):
            statuses = self.poll()
            if any(self._has_left(statuses[i]) for i in worker_ids):
                break
            if all(statuses[i].phase is Phase.DONE for i in worker_ids):
                return statuses
            self._tick.wait(0.005)
        self.halt(worker_ids)
        return self.await_all(lambda s: s.phase in (Phase.STOPPED, Phase.FAILED), worker_ids)

    def _has_left(self, status: WorkerStatus) -> bool:
        assert self.plan is not None
        is_stopped = status.phase is Phase.STOPPED and status.stop is not None
        return status.phase is Phase.FAILED or (is_stopped and status.stop.generation == self.plan.generation)

    def await_all(
        self, condition: Callable[[WorkerStatus], bool], worker_ids: Sequence[str], limit_s: float = WAIT_S
    ) -> dict[str, WorkerStatus]:
        """Poll until the condition holds for all of these workers."""
        for _ in range(int(limit_s / 0.005)):
            statuses = self.poll()
            if all(condition(statuses[i]) for i in worker_ids):
                return statuses
            self._tick.wait(0.005)
        seen = {i: (s.phase, s.round, s.stop, s.failure) for i, s in self.poll().items()}
        raise AssertionError(f"waited {limit_s:g} s in vain; workers are {seen}")

    def await_done(self, worker_ids: Sequence[str]) -> dict[str, WorkerStatus]:
        """Wait for the last sample, the final evaluation and checkpoint."""
        return self.await_all(lambda s: s.phase is Phase.DONE, worker_ids)

    def losses(self) -> list[float]:
        """The recorded loss of every round in order."""
        return [record.values["loss"] for _, record in sorted(self.records.items())]


class ProcessGroup(Group):
    """The same with a process a worker, for tests that kill or freeze one, or in which several draw at random.

    Another ``entrypoint`` makes tasks that have the gates only where it puts them in.
    """

    in_processes = True

    def __init__(self, **spec: Any) -> None:
        super().__init__(Script(), **{"entrypoint": "tests.training.rank:build", **spec})

    def gate(self, worker_id: str) -> FileGate:
        """The gate before one worker's data."""
        return FileGate(self.root, worker_id)

    def process_id(self, worker_id: str) -> int:
        session = self.sessions[worker_id]
        assert isinstance(session, RankProcess)
        assert session.process.pid is not None
        return session.process.pid

    def forget(self, worker_id: str) -> None:
        """Kill a worker and speak to it no more."""
        session = self.sessions.pop(worker_id)
        assert isinstance(session, RankProcess)
        session.process.kill()
        session.process.join(WAIT_S)

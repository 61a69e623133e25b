"""One controller at its desk: tests say what its workers would, and look at what it decides."""

from __future__ import annotations

from dataclasses import replace

from workers.assignment import JobKey
from workers.control.decisions import (
    Action,
    AskHead,
    AskNode,
    ControllerState,
    ControlSettings,
    Inputs,
    Note,
)
from workers.control.turn import begin, turn
from workers.errors import Failure, Reason
from workers.plan import Plan, TimelineKind
from workers.spec import parse_job_spec
from workers.status import (
    Acknowledged,
    BuildInfo,
    CheckpointInfo,
    Direction,
    Phase,
    RunGoal,
    RunPhase,
    StopCause,
    StopReport,
    TimelineRow,
    WorkerStatus,
)

SETTINGS = ControlSettings(liveness_s=10, hold_s=60, place_s=30, gather_s=5, stop_s=5, kill_s=5)


class Desk:
    """One controller and the statuses that its workers would give."""

    def __init__(
        self, low: int = 1, high: int = 4, want: int = 2, max_failures: int = 3, term: int = 1, **more: object
    ) -> None:
        spec = parse_job_spec(
            {
                "name": "desk",
                "entrypoint": "workers.recipes.digits:build",
                "steps": 100,
                "workers": {"min": low, "max": high},
                "batch": {"global_size": 8},
                "retry": {"max_failures": max_failures},
                **more,
            }
        )
        self.now = 100.0
        self.state: ControllerState = begin(JobKey(job_id="j", attempt=1), term, spec, SETTINGS, self.now)
        self.direction = Direction(goal=RunGoal.RUN, num_workers=want)
        self.acked = Acknowledged()
        self.latest: CheckpointInfo | None = None
        self.statuses: dict[str, WorkerStatus] = {}
        self.listed: tuple[str, ...] | None = ()
        self.actions: tuple[Action, ...] = ()
        self.sees_head = True
        self.head_seen_s: float | None = None
        self.sees_nodes = False
        self.nodes_seen_s: dict[str, float] = {}
        self.nodes: dict[str, str] = {}

    def turn(
        self,
        after_s: float = 0.1,
        lost: dict[str, str] | None = None,
        silent: tuple[str, ...] = (),
        *,
        is_refusing: bool = False,
        was_cut_off: bool = False,
    ) -> None:
        """One turn; the ``silent`` do not answer, and where ``is_refusing`` they cannot be called at all."""
        self.now += after_s
        for i in lost or {}:
            self.statuses.pop(i, None)
        self.statuses = {i: replace(s, seq=s.seq + 1) for i, s in self.statuses.items() if i not in silent} | {
            i: s for i, s in self.statuses.items() if i in silent
        }
        heard = {i: s for i, s in self.statuses.items() if i not in silent}
        inputs = Inputs(
            unix_s=self.unix_s,
            direction=self.direction,
            acked=self.acked,
            listed=self.listed,
            statuses=heard,
            lost=lost or {},
            refusing=frozenset(silent if is_refusing else ()),
            nodes=self.nodes,
            head_seen_s=self.head_seen_s,
            nodes_seen_s=self.nodes_seen_s,
            was_cut_off=was_cut_off,
            latest=self.latest,
            has_looked=True,
        )
        self.listed = None
        self.state, self.actions = turn(self.state, inputs, self.now)
        if self.sees_head and self.of(AskHead):
            self.head_seen_s = self.now
        if self.sees_nodes:
            asked = [action.node_id for action in self.actions if isinstance(action, AskNode)]
            self.nodes_seen_s = {**self.nodes_seen_s, **dict.fromkeys(asked, self.now)}

    @property
    def unix_s(self) -> float:
        return 1e9 + self.now

    def say(self, worker_id: str, phase: Phase, **more: object) -> None:
        old = self.statuses.get(worker_id)
        seen = old or WorkerStatus(
            worker_id=worker_id, seq=0, term=self.state.term, phase=phase, phase_age_s=0.0, build=build_info()
        )
        self.statuses[worker_id] = replace(seen, phase=phase, **{"phase_age_s": 0.0, **more})  # type: ignore[arg-type]  # fields by name

    def of(self, kind: type[Action]) -> list[Action]:
        return [a for a in self.actions if isinstance(a, kind)]

    def notes(self) -> list[TimelineRow]:
        return [a.row for a in self.actions if isinstance(a, Note)]

    def rows(self) -> list[TimelineKind]:
        return [a.row.kind for a in self.actions if isinstance(a, Note)]

    @property
    def plan(self) -> Plan:
        assert self.state.plan is not None
        return self.state.plan

    def train(self, *worker_ids: str, round: int = 5) -> None:
        """Bring these workers into training under the plan that was offered."""
        for worker_id in worker_ids:
            self.say(
                worker_id,
                Phase.COMPUTE,
                plan=self.plan,
                pending=None,
                generation=self.plan.generation,
                lineage=self.plan.lineage,
                round=round,
                cursor=round * 8,
                stop=None,
            )

    def started(self, num: int) -> list[str]:
        """From nothing to ``num`` workers that train."""
        self.direction = replace(self.direction, num_workers=num)
        self.turn()
        self.turn()
        ids = [f"{self.state.term}.{n}" for n in range(1, num + 1)]
        for i in ids:
            self.say(i, Phase.READY)
        self.turn()
        self.train(*ids)
        self.turn()
        self.turn()
        assert self.state.phase is RunPhase.RUNNING
        return ids

    def stop(self, worker_id: str, cause: StopCause, failure: Failure | None = None) -> None:
        stop = StopReport(generation=self.plan.generation, cause=cause, failure=failure)
        self.say(worker_id, Phase.STOPPED, generation=None, stop=stop, halted=self.plan.id)


def build_info() -> BuildInfo:
    return BuildInfo(
        num_train=80,
        num_eval=8,
        num_parameters=10,
        total_samples=800,
        device="cpu",
        device_seconds={"fp32": 1.0, "bf16": 3.0, "fp16": 9.0},
        node_id="n",
        pid=1,
    )


def checkpoint(round: int, *, is_final: bool = False) -> CheckpointInfo:
    return CheckpointInfo(
        path=f"p{round}",
        attempt=1,
        lineage=1,
        generation=1,
        round=round,
        step=round,
        cursor=round * 8,
        size_bytes=1,
        metric=None,
        is_final=is_final,
        created_at=0.0,
    )


FAILURE = Failure(reason=Reason.USER_ERROR, type="ValueError", message="bad sample", round=6)

"""A world of simulated workers, messages and controllers around the real ``turn`` and ``boundary``.

Workers step through phases as the trainer does; a collective completes when every member of the
group has contributed, but each member learns of it in a step of its own, so a loss in between
leaves some with the commit and some without. Messages are delayed, reordered and lost. State is
reduced to its history: one token a committed round, the same for all who committed it together.
Where workers are ``is_uneven``, they tell of speeds that change now and then; where it ``has_slow_link``, of exchanges
that take long, which other schemes make shorter or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.control.simulated_controller import SimController
from tests.control.simulated_faults import Fault, is_moment, strike
from tests.control.simulated_worker import Group, SimWorker
from workers.assignment import JobKey
from workers.control import compressing, sharing
from workers.control.decisions import ControllerState, ControlSettings
from workers.control.turn import begin
from workers.plan import Plan, TimelineKind
from workers.run_settings import Donor, RunSettings
from workers.spec import parse_job_spec
from workers.status import (
    Acknowledged,
    CheckpointInfo,
    Direction,
    Outcome,
    Phase,
    RunGoal,
)

SETTINGS = ControlSettings(liveness_s=3, hold_s=20, place_s=30, gather_s=1, stop_s=5, kill_s=3, line_s=10)
LOST_SHARE = 0.05
"""Of each kind of message: orders, questions and their answers."""


@dataclass
class World:
    """Everything outside the controller; ``run`` drives it to its end."""

    rng: random.Random
    num_rounds: int
    workers_range: tuple[int, int]
    want: int
    faults: list[Fault]
    now: float = 0.0
    term: int = 0
    controller: SimController | None = None
    controller_resumes: float = 0.0
    past: list[SimController] = field(default_factory=list)
    serving: dict[int, SimController] = field(default_factory=dict)
    workers: dict[str, SimWorker] = field(default_factory=dict)
    all_workers: dict[str, SimWorker] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    groups: dict[tuple[int, int], Group] = field(default_factory=dict)
    sync_states: dict[int, tuple[int, ...] | str] = field(default_factory=dict)
    storage: list[tuple[CheckpointInfo, tuple[int, ...]]] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    passed_over: set[str] = field(default_factory=set)
    tokens: dict[tuple[object, int], int] = field(default_factory=dict)
    plans: dict[tuple[object, int], object] = field(default_factory=dict)
    mail: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    outcome: Outcome | None = None
    num_user_errors: int = 0
    num_refused: int = 0
    num_withheld: int = 0
    stored: tuple[int, int] = (0, 0)
    goal: RunGoal = RunGoal.RUN
    settings: RunSettings | None = None
    until: int | None = None
    num_stood: int = 0
    donors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    struck: list[Fault] = field(default_factory=list)
    num_deaths: int = 0
    was_empty: bool = False
    lineages: set[int] = field(default_factory=set)
    out_of_reach: set[str] = field(default_factory=set)
    cut_until: float = 0.0
    is_uneven: bool = False
    has_slow_link: bool = False
    shared: set[object] = field(default_factory=set)
    relieved: set[object] = field(default_factory=set)
    compressed: set[object] = field(default_factory=set)

    @property
    def tells_speeds(self) -> bool:
        return self.is_uneven or self.has_slow_link

    # --- records of what must hold -------------------------------------------------------------

    def token(self, worker: SimWorker, group: Group, plan: Plan) -> int:
        """The commit of a round by one generation: every member holds the same plan, and none that came too late."""
        assert worker.round is not None
        if self.controller is not None and worker.id in self.controller.state.workers:
            assert self.controller.knows(plan), f"{worker.id} trained under {plan.id} in term {self.term}"
        if plan.cause.actor == sharing.ACTOR:
            (self.relieved if plan.cause.kind is TimelineKind.WORKER_JOINED else self.shared).add(plan.id)
        if plan.cause.actor == compressing.ACTOR:
            self.compressed.add(plan.id)
        key = (group.plan.id, worker.round)
        seen = self.plans.setdefault(key, plan.id)
        assert seen == plan.id, f"two plans {seen} and {plan.id} in round {worker.round}"
        return self.tokens.setdefault(key, len(self.tokens) + 1)

    def save(self, worker: SimWorker, *, is_final: bool) -> None:
        plan = worker.held.plan
        assert plan is not None
        assert worker.round is not None
        info = CheckpointInfo(
            path=f"{worker.id}/{len(self.storage)}",
            attempt=1,
            lineage=worker.lineage or 0,
            generation=plan.generation,
            round=worker.round,
            step=worker.round,
            cursor=worker.round * 8,
            size_bytes=1,
            metric=None,
            is_final=is_final,
            created_at=self.now,
            settings=plan.settings,
        )
        self.storage.append((info, worker.history))

    # --- faults ---------------------------------------------------------------------------------

    def _struck(self, fault: Fault) -> None:
        before = self._holders()
        strike(self, fault)
        self.struck.append(fault)
        self.num_deaths += len(before - self._holders())
        self.was_empty |= bool(before) and not before & self._holders()

    def _holders(self) -> set[str]:
        """Workers that hold the newest state, or that of the round before; what leavers hold is older."""
        rounds = {i: w.round for i, w in self.workers.items() if w.round is not None and not w.is_frozen}
        return {i for i, round in rounds.items() if round >= max(rounds.values()) - 1}

    def kill(self, worker_id: str) -> None:
        worker = self.workers.pop(worker_id)
        if worker.group is not None:
            worker.group.is_broken = True
            worker.group.arrived.pop(worker_id, None)
        self.lost[worker_id] = "killed"

    # --- controllers ------------------------------------------------------------------------------

    def send(self, effect: Callable[[], None], most_s: float = 0.3) -> None:
        """Deliver an order later, out of order, or (seldom) never."""
        if self.rng.random() > LOST_SHARE:
            self.mail.append((self.now + self.rng.uniform(0.0, most_s), effect))

    def control(self) -> None:
        self.past = [old for old in self.past if self.now < old.ends_s]
        self.serving = {c.term: c for c in (*self.past, self.controller) if c is not None}
        for old in self.past:
            old.act()
        if self.now < self.controller_resumes:
            return
        if self.controller is None:
            self._succeed()
        assert self.controller is not None
        self._decide()
        self.stored = max(self.stored, self.controller.state.furthest)
        self.controller.direction, self.controller.acked = self._direction(), self._acked()
        self.controller.act()
        self._check_lineage(self.controller.state)
        self.outcome = self.controller.state.outcome

    def given_up(self, term: int) -> int | None:
        """The last generation that the rendezvous of this term gave up; None where its controller is gone."""
        return self.serving[term].superseded if term in self.serving else None

    def start(self, worker_id: str, term: int) -> None:
        """A worker begins to build, as the controller of this term wants it."""
        assert worker_id not in self.all_workers, "worker ids are never used twice"
        worker = SimWorker(id=worker_id, world=self, term=term, to_build=self.rng.randint(1, 20), phase_since=self.now)
        self.workers[worker_id] = self.all_workers[worker_id] = worker

    def _direction(self) -> Direction:
        return Direction(goal=self.goal, num_workers=self.want, settings=self.settings, until=self.until)

    def _acked(self) -> Acknowledged:
        return Acknowledged(rounds=self.stored, checkpoints=frozenset(c.path for c, _ in self.storage))

    def _decide(self) -> None:
        """Whether those who stand at the line go on; now and then the verdict takes longer than they wait."""
        standing = {w.stands_at for w in self.workers.values() if w.phase is Phase.HELD}
        if self.until in standing and self.rng.random() < 0.02:
            self.num_stood += 1
            self.until = self.rng.choice([None, (self.until or 0) + self.rng.randint(1, 60)])

    def _succeed(self) -> None:
        self.term += 1
        spec = parse_job_spec(
            {
                "name": "sim",
                "entrypoint": "workers.recipes.digits:build",
                "samples": self.num_rounds * 8,
                "workers": {"min": self.workers_range[0], "max": self.workers_range[1]},
                "batch": {"global_size": 8},
                "retry": {"max_failures": 50},
            }
        )
        state = begin(JobKey(job_id="job", attempt=1), self.term, spec, SETTINGS, self.now)
        listed = tuple(sorted(self.workers))
        self.controller = SimController(self, state, self._direction(), self._acked(), listed)
        self.serving[self.term] = self.controller

    def _check_lineage(self, state: ControllerState) -> None:
        """A new lineage may only begin when nobody who could go on holds state."""
        if state.plan is None or state.plan.lineage in self.lineages:
            return
        self.lineages.add(state.plan.lineage)
        is_learnt = state.plan.id.term < state.term  # begun by another before this one had heard of all workers
        if is_learnt or isinstance(state.plan.source, Donor):
            return
        # Who was told to go, as nobody needed it then, cannot be called back.
        sent_away = {i for i, f in state.workers.items() if f.kill or f.stopping_since_s is not None}
        alive = [
            w.id for w in self.workers.values() if w.round is not None and not w.is_frozen and w.id in state.workers
        ]
        assert not set(alive) - sent_away, f"lineage {state.plan.lineage} began while {alive} held state"

    def is_cut_off(self, worker_id: str) -> bool:
        """Whether this worker is on the other side of a cut from the controller."""
        return self.now < self.cut_until and worker_id in self.out_of_reach

    def is_split(self, worker_ids: Iterable[str]) -> bool:
        """Whether some of these cannot reach the others."""
        return len({self.is_cut_off(i) for i in worker_ids}) > 1

    # --- time -----------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now += self.rng.uniform(0.01, 0.08)
        due = [m for m in self.mail if m[0] <= self.now]
        self.mail = [m for m in self.mail if m[0] > self.now]
        self.rng.shuffle(due)
        for _, effect in due:
            effect()
        order = sorted(self.workers)
        self.rng.shuffle(order)
        for worker_id in order:
            if worker_id in self.workers and self.rng.random() < 0.7:
                self.workers[worker_id].step()
        if self.rng.random() < 0.6:
            self.control()

    def run(self, max_ticks: int) -> None:
        times = sorted(self.rng.randint(1, 400) for _ in self.faults)
        early = Fault.KILL_AT_FIRST_STEP  # its moment is soon over
        pending = [(0 if f is early else t, f) for t, f in zip(times, self.faults, strict=True)]
        for n in range(max_ticks):
            for moment, fault in [p for p in pending if p[0] <= n and is_moment(self, p[1])]:
                pending.remove((moment, fault))
                if is_moment(self, fault):
                    self._struck(fault)
            self.tick()
            if self.outcome is not None:
                return
        raise AssertionError(f"no end after {max_ticks} ticks: {self.describe()}")

    def describe(self) -> str:
        state = self.controller and self.controller.state
        workers = {
            i: (w.phase.value, w.round, w.held.plan.id if w.held.plan else None, w.stop and w.stop.cause.value)
            for i, w in self.workers.items()
        }
        told = (
            (state.plan and (state.plan.id, state.plan.members), state.is_broken, state.why_broken) if state else None
        )
        return f"now={self.now:.1f} want={self.want} workers={workers} controller={told}"

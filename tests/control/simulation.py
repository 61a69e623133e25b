"""A world of simulated workers, messages and controllers around the real ``turn`` and ``boundary``.

Workers step through phases as the trainer does; a collective completes when every member of the
group has contributed, but each member learns of it in a step of its own, so a loss in between
leaves some with the commit and some without. Messages are delayed, reordered and lost. State is
reduced to its history: one token a committed round, the same for all who committed it together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.control.simulated_faults import Fault, is_moment, strike
from tests.control.simulated_worker import Group, SimWorker
from workers.assignment import JobKey
from workers.control.decisions import (
    AskHead,
    ControllerState,
    ControlSettings,
    HaltWorker,
    Inputs,
    KillWorker,
    StartWorker,
    StopWorker,
    SupersedeGroup,
)
from workers.control.turn import begin, turn
from workers.plan import Plan
from workers.run_settings import Donor, RunSettings
from workers.spec import parse_job_spec
from workers.status import (
    Acknowledged,
    CheckpointInfo,
    Direction,
    Outcome,
    Phase,
    RunGoal,
    WorkerStatus,
)

SETTINGS = ControlSettings(liveness_s=3, hold_s=20, place_s=30, gather_s=1, stop_s=5, kill_s=3, line_s=10)
LOST_SHARE = 0.05
"""Of each kind of message: orders, questions and their answers."""

POLL_S = 0.5
"""A poll that was not answered by then is given up; the fleet's has a like part of the patience with a worker."""


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
    controller: ControllerState | None = None
    controller_resumes: float = 0.0
    listed: tuple[str, ...] | None = None
    workers: dict[str, SimWorker] = field(default_factory=dict)
    all_workers: dict[str, SimWorker] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    groups: dict[tuple[int, int], Group] = field(default_factory=dict)
    sync_states: dict[int, tuple[int, ...] | str] = field(default_factory=dict)
    storage: list[tuple[CheckpointInfo, tuple[int, ...]]] = field(default_factory=list)
    tokens: dict[tuple[object, int], int] = field(default_factory=dict)
    plans: dict[tuple[object, int], object] = field(default_factory=dict)
    mail: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    heard: dict[str, WorkerStatus] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    outcome: Outcome | None = None
    num_user_errors: int = 0
    stored: tuple[int, int] = (0, 0)
    superseded: int = 0
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
    head_seen_s: float | None = None
    was_cut_off: bool = False
    is_asking_head: bool = False

    # --- records of what must hold -------------------------------------------------------------

    def token(self, worker: SimWorker, group: Group, plan: Plan) -> int:
        """The commit of a round by one generation; every member must hold the same plan for it."""
        assert worker.round is not None
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
            worker.group.arrived.discard(worker_id)
        self.lost[worker_id] = "killed"

    # --- the controller and its calls -----------------------------------------------------------

    def send(self, effect: Callable[[], None]) -> None:
        """Deliver an order later, out of order, or (seldom) never."""
        self._post(effect, 0.3)

    def _post(self, effect: Callable[[], None], most_s: float) -> None:
        if self.rng.random() > LOST_SHARE:
            self.mail.append((self.now + self.rng.uniform(0.0, most_s), effect))

    def control(self) -> None:
        if self.now < self.controller_resumes:
            return
        if self.controller is None:
            self._succeed()
        assert self.controller is not None
        self._poll_all(self.controller)
        self._decide()
        known = [c for c, _ in self.storage]
        self.stored = max(self.stored, self.controller.furthest)
        newest = max(known, key=lambda c: c.order, default=None)
        inputs = Inputs(
            unix_s=self.now,
            direction=Direction(goal=self.goal, num_workers=self.want, settings=self.settings, until=self.until),
            acked=Acknowledged(rounds=self.stored, checkpoints=frozenset(c.path for c in known)),
            listed=self.listed,
            statuses=dict(self.heard),
            lost={i: w for i, w in self.lost.items() if i in self.controller.workers},
            head_seen_s=self.head_seen_s,
            was_cut_off=self.was_cut_off,
            latest=newest,
        )
        self.listed, self.was_cut_off = None, False
        before = self.controller
        self.controller, actions = turn(before, inputs, self.now)
        self._check_lineage(before)
        self.outcome = self.controller.outcome
        for action in actions:
            self._act(action)

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
        self.controller = begin(JobKey(job_id="job", attempt=1), self.term, spec, SETTINGS, self.now)
        self.listed = tuple(sorted(self.workers))
        self.heard, self.asked, self.lost, self.superseded = {}, {}, {}, 0
        self.head_seen_s, self.was_cut_off, self.is_asking_head = None, False, False

    def _check_lineage(self, before: ControllerState) -> None:
        """A new lineage may only begin when nobody who could go on holds state."""
        assert self.controller is not None
        plan = self.controller.plan
        if plan is None or plan.lineage in self.lineages:
            return
        self.lineages.add(plan.lineage)
        if isinstance(plan.source, Donor):
            return
        # Who was told to go, as nobody needed it then, cannot be called back.
        sent_away = {i for i, f in self.controller.workers.items() if f.kill or f.stopping_since_s is not None}
        alive = [
            w.id
            for w in self.workers.values()
            if w.round is not None and not w.is_frozen and w.id in self.controller.workers
        ]
        assert not set(alive) - sent_away, f"lineage {plan.lineage} began while {alive} held state"

    def _poll_all(self, controller: ControllerState) -> None:
        for worker_id in controller.workers:
            worker = self.workers.get(worker_id)
            if worker is None or self.now - self.asked.get(worker_id, -POLL_S) < POLL_S:
                continue
            self.asked[worker_id] = self.now
            plan, term = controller.offers.get(worker_id), self.term

            def ask(worker: SimWorker = worker, plan: Plan | None = plan, term: int = term) -> None:
                is_mute = worker.is_frozen or worker.id not in self.workers or self.is_cut_off(worker.id)
                status = None if is_mute else worker.poll(term, plan)

                def answer(status: WorkerStatus | None = status, worker: SimWorker = worker) -> None:
                    if term == self.term:
                        self.asked.pop(worker.id, None)
                        if status is not None:
                            self.heard[worker.id] = status

                self._post(answer, 0.1)

            self._post(ask, 0.1)

    def _act(self, action: object) -> None:
        term = self.term
        match action:
            case StartWorker(worker_id=i):
                assert i not in self.all_workers, "worker ids are never used twice"
                worker = SimWorker(id=i, world=self, to_build=self.rng.randint(1, 20), phase_since=self.now)
                self.workers[i] = self.all_workers[i] = worker
            case HaltWorker(worker_id=i, plan_id=p):
                target = self.workers.get(i)
                if target is not None and not target.is_frozen and not self.is_cut_off(i):
                    self.send(lambda: target.halt(term, p) if target.id in self.workers else None)
            case SupersedeGroup(generation=g):
                self.superseded = max(self.superseded, g)
            case StopWorker(worker_id=i):
                if not self.is_cut_off(i):
                    self.send(lambda: self.kill(i) if i in self.workers and not self.workers[i].is_frozen else None)
            case KillWorker(worker_id=i, why=why):
                assert not (self.is_cut_off(i) and "silent" in why), f"cut off itself, it left {i} behind: {why}"
                if i in self.workers:
                    self.kill(i)
            case AskHead():
                self._ask_head()
            case _:
                pass

    def is_cut_off(self, worker_id: str) -> bool:
        """Whether this worker is on the other side of a cut from the controller."""
        return self.now < self.cut_until and worker_id in self.out_of_reach

    def is_split(self, worker_ids: Iterable[str]) -> bool:
        """Whether some of these cannot reach the others."""
        return len({self.is_cut_off(i) for i in worker_ids}) > 1

    def _ask_head(self) -> None:
        if self.is_asking_head:
            return
        self.is_asking_head = True
        term, asked_s = self.term, self.now
        is_late = self.now < self.cut_until

        def answer() -> None:
            if term == self.term:
                self.is_asking_head, self.was_cut_off = False, is_late
                self.head_seen_s = self.head_seen_s if is_late else asked_s

        self.mail.append((max(self.now, self.cut_until) + self.rng.uniform(0.0, 0.1), answer))

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
        state = self.controller
        workers = {
            i: (w.phase.value, w.round, w.held.plan.id if w.held.plan else None, w.stop and w.stop.cause.value)
            for i, w in self.workers.items()
        }
        told = (
            (state.plan and (state.plan.id, state.plan.members), state.is_broken, state.why_broken) if state else None
        )
        return f"now={self.now:.1f} want={self.want} workers={workers} controller={told}"

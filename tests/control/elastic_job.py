"""A job on a cluster in simulated time: the real ``sizing`` asks, a service grants while there is room."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.advisors.judging import Judged
from workers.control import sizing
from workers.control.sizing import Sizing, Standing
from workers.lr import LrPlan
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.status import Direction, RoundRecord, RunGoal

BATCH = 256
EPOCH_S = 1e9


@dataclass
class ElasticJob:
    """``speed`` gives samples a second by size, ``room`` the size that the cluster has room for at a time.

    A newcomer is ready after ``delay_s``; a change halts training for ``stall_s``. ``noise`` is the relative
    deviation of a step's time.
    """

    speed: Callable[[int], float]
    room: Callable[[float], int]
    num_samples: int
    low: int = 1
    high: int = 8
    delay_s: float = 10.0
    stall_s: float = 0.5
    noise: float = 0.0
    seed: int = 0
    now_s: float = 0.0
    size: int = 1
    granted: int = 1
    ready_s: float | None = None
    round: int = 0
    sizing: Sizing = field(default_factory=Sizing)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._n = 1

    @property
    def num_changes(self) -> int:
        return len(self.sizes)

    @property
    def plan(self) -> Plan:
        return Plan(
            id=PlanId(1, self._n),
            switch=Switch.AGREED,
            generation=self._n,
            lineage=1,
            source=FreshSource(),
            members=tuple(Member(worker_id=f"1.{rank}", rank=rank) for rank in range(self.size)),
            global_batch=BATCH,
            lr=LrPlan(lr=1.0, base_batch=BATCH),
            cause=Cause(kind=TimelineKind.RESIZE, actor="test", reason=""),
        )

    def run(self, until_s: float = float("inf")) -> ElasticJob:
        """Train to the last sample, or until a time."""
        while self.round * BATCH < self.num_samples and self.now_s < until_s:
            self._step()
        return self

    def _step(self) -> None:
        step_s = BATCH / self.speed(self.size) * max(0.1, self._rng.gauss(1.0, self.noise))
        self.now_s += step_s
        self.round += 1
        record = RoundRecord(
            lineage=1,
            round=self.round,
            generation=self._n,
            plan_id=PlanId(1, self._n),
            cursor=self.round * BATCH,
            samples=BATCH,
            time=EPOCH_S + self.now_s,
            values={"step_s": step_s, "workers": float(self.size)},
        )
        room = max(self.low, min(self.high, self.room(self.now_s)))
        self.granted = min(sizing.num_asked(self.sizing, self._direction(room)), room)
        direction = self._direction(room)
        self.sizing = sizing.observe(self.sizing, [record], self.plan, self.now_s)
        left = Standing(plan=self.plan, num_left=self.num_samples - record.cursor)
        self.sizing, judged = sizing.consider(self.sizing, direction, left, self.now_s, EPOCH_S + self.now_s)
        self.judged += [judged] if judged else []
        assert self.low <= sizing.num_asked(self.sizing, direction) <= room
        self._follow()

    def _direction(self, room: int) -> Direction:
        return Direction(goal=RunGoal.RUN, num_workers=self.granted, num_offered=room)

    def _follow(self) -> None:
        """The controller: whoever must go goes, whoever may come is ready after a while."""
        if self.granted > self.size:
            self.ready_s = self.now_s + self.delay_s if self.ready_s is None else self.ready_s
            if self.now_s < self.ready_s:
                return
        self.ready_s = None
        if self.granted != self.size:
            self.size, self._n = self.granted, self._n + 1
            self.sizes.append((self.now_s, self.size))
            self.now_s += self.stall_s

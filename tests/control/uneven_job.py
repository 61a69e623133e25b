"""A job whose workers differ in speed, in simulated time: the real turn sees what they would tell, and decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import TypeAlias

from tests.control.desk import Desk, build_info
from workers.measures import BuildInfo, RankLoad, SchemeCost
from workers.plan import Plan, TimelineKind
from workers.racks import Topology
from workers.status import Phase, RoundRecord, TimelineRow

BATCH = 128
CostOf: TypeAlias = Callable[[int], float]
LinkOf: TypeAlias = Callable[[str], tuple[float, float]]
SCHEMES = {"none": SchemeCost(bytes_a_value=4.0, seconds_a_million=0.0)}


class UnevenJob:
    """``costs`` gives seconds of a part by samples, a worker each; ``noise`` is their relative deviation.

    ``run`` rounds is what a worker tells of at a time. ``link`` gives the seconds of an exchange, and those of them
    that are waited for, by the name of the exchange in force; ``topology`` is what workers tell of their links,
    ``buckets`` what their gradients may be cut into, ``backward_s`` what can hide an exchange, ``wire_s`` what the
    link is at work of it, and ``codec_s`` what encoding and decoding take. A round has ``num_steps``. With a
    ``length_spread`` samples have log-normal lengths around a mean of 1, and a round costs as many times as much as its
    samples are longer than that.
    """

    link: LinkOf = staticmethod(lambda scheme: (0.0, 0.0))
    schemes: Mapping[str, SchemeCost] = SCHEMES
    gradient_bytes: float = 4.0
    buckets: Mapping[int, tuple[float, ...]] = {}
    backward_s: float | None = None
    wire_s: float | None = None
    codec_s: float | None = None
    topology: Topology | None = None
    num_steps = 1
    length_spread = 0.0

    def __init__(self, *costs: CostOf, noise: float = 0.0, run: int = 3, seed: int = 0, **spec: object) -> None:
        self.desk = Desk(high=8, **{"batch": {"global_size": BATCH}, "steps": 100_000, **spec})
        self.ids = self.desk.started(len(costs))
        self.costs = dict(zip(self.ids, costs, strict=True))
        self.noise, self._run, self.round = noise, run, 5
        self.rows: list[TimelineRow] = []
        self.plans = [self.desk.plan]
        self.node_ids: dict[str, str] = {}
        self._rng = random.Random(seed)
        self._own_s: dict[str, list[tuple[float, float]]] = {i: [] for i in self.ids}
        self._in_force = self.desk.plan
        self._n = 0

    @property
    def parts(self) -> tuple[int, ...]:
        """Of the plan in force, by rank."""
        return tuple(self._in_force.parts.values())

    @property
    def cursor(self) -> int:
        """Samples drawn by now."""
        return self.round * self.num_steps * BATCH

    def join(self, worker_id: str, cost: CostOf) -> None:
        """A newcomer that the latest plan names; the plan is in force from now on."""
        self.costs[worker_id], self._own_s[worker_id] = cost, []
        self._in_force = self.desk.plan
        self.plans.append(self._in_force)

    def run(self, num_rounds: int) -> UnevenJob:
        """Train on; a plan that was issued is in force from the next round."""
        for _ in range(num_rounds):
            self._step()
        return self

    def told(self, kind: TimelineKind) -> list[TimelineRow]:
        """The rows of one kind so far."""
        return [row for row in self.rows if row.kind is kind]

    def _step(self) -> None:
        plan, desk = self._in_force, self.desk
        parts = plan.parts
        own = {i: self.costs[i](part) * max(0.1, self._rng.gauss(1.0, self.noise)) for i, part in parts.items()}
        length = self._mean_length()
        own = {i: own_s * length for i, own_s in own.items()}
        round_s = self.num_steps * (max(own.values()) + self.link(plan.exchange.name)[1])
        self.round += 1
        for i in parts:
            self._say(i, plan, parts[i], own[i], length)
        record = RoundRecord(
            lineage=1,
            round=self.round,
            generation=plan.generation,
            plan_id=plan.id,
            cursor=self.cursor,
            samples=self.num_steps * BATCH,
            time=1e9 + desk.now,
            values={"step_s": round_s, "workers": float(len(parts))},
            num_steps=self.num_steps,
            tokens=self.num_steps * BATCH * length if self.length_spread else 0.0,
        )
        record = self.recorded(record, plan)
        teller = plan.members[0].worker_id
        desk.statuses[teller] = replace(desk.statuses[teller], records=(record,))
        desk.turn(after_s=round_s)
        self.rows += desk.notes()
        if desk.plan.id != self.plans[-1].id:
            self.plans.append(desk.plan)
        if self._in_force.id != desk.plan.id:
            self._own_s = {i: [] for i in self._own_s}
        self._in_force = desk.plan

    def recorded(self, record: RoundRecord, plan: Plan) -> RoundRecord:
        """A round as it is told, under this plan."""
        return record

    def built(self, worker_id: str) -> BuildInfo:
        """What a worker tells of itself; on node ``n`` but for those of ``node_ids``."""
        node_id = self.node_ids.get(worker_id, "n")
        return replace(
            build_info(),
            num_trained=1_000_000,
            total_samples=100_000 * BATCH,
            node_id=node_id,
            schemes=self.schemes,
            gradient_bytes=self.gradient_bytes,
            buckets=self.buckets,
        )

    def _mean_length(self) -> float:
        """Of a round's samples."""
        if not self.length_spread:
            return 1.0
        mu = -(self.length_spread**2) / 2
        return fmean(self._rng.lognormvariate(mu, self.length_spread) for _ in range(BATCH))

    def _usual_s(self, worker_id: str) -> float:
        """Seconds of the median round of a run, by its samples' length, with the mean one."""
        lengths = [length for _, length in self._own_s[worker_id]]
        return fmean(lengths) * sorted(own_s / length for own_s, length in self._own_s[worker_id])[self._run // 2]

    def _say(self, worker_id: str, plan: Plan, part: int, own_s: float, length: float) -> None:
        self._own_s[worker_id].append((own_s, length))
        more: dict[str, object] = {}
        if len(self._own_s[worker_id]) == self._run:
            self._n += 1
            tokens = fmean(length for _, length in self._own_s[worker_id]) * part if self.length_spread else 0.0
            took_s, waited_s = self.link(plan.exchange.name)
            load = RankLoad(
                n=self._n,
                plan_id=plan.id,
                samples=part,
                num_rounds=self._run,
                seconds=self._usual_s(worker_id),
                tokens=tokens,
                exchange_s=took_s,
                exposed_s=waited_s,
                backward_s=self.backward_s,
                wire_s=self.wire_s,
                codec_s=self.codec_s,
            )
            more, self._own_s[worker_id] = {"loads": (load,)}, []
        self.desk.say(
            worker_id,
            Phase.COMPUTE,
            plan=plan,
            generation=plan.generation,
            lineage=1,
            round=self.round,
            cursor=self.cursor,
            build=self.built(worker_id),
            topology=self.topology,
            **more,
        )

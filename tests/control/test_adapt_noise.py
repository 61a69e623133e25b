"""The global batch under replayed noise: of gradients, of the seconds of steps, of what others take of the machine."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.control.desk import Desk, build_info
from workers.control import adapt
from workers.control.adapting import REST_ROUNDS, Refusal
from workers.control.decisions import Inputs
from workers.plan import Plan
from workers.status import Acknowledged, RoundRecord
from workers.training.noise import NoiseScale, estimate

LEAST, MOST = 32, 512
ROUNDS = 400
DIMENSION = 40
"""Of the noise: what the gradients of a model of this size come to has about as many independent directions."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What a job meets. A step takes ``fixed_s`` a pass and ``sample_s`` a sample, ``jitter`` its relative deviation.

    In every third stretch of ``burst`` rounds (0: in none) others take half of the machine.
    """

    noise_scale: float
    fixed_s: float
    sample_s: float
    jitter: float
    burst: int
    micro: int | None
    refused: dict[int, float]
    seed: int

    def step_s(self, round: int, batch: int, draw: random.Random) -> float:
        busy = 2.0 if self.burst and round // self.burst % 3 == 1 else 1.0
        plain = self.fixed_s * self.num_passes(batch) + self.sample_s * batch / 2
        return plain * busy * max(0.3, draw.gauss(1.0, self.jitter))

    def num_passes(self, batch: int) -> int:
        return 1 if self.micro is None else math.ceil(batch / 2 / self.micro)


@dataclass
class Replay:
    """A controller of two workers, whose rounds are told one by one."""

    world: World
    batches: list[int] = field(default_factory=list)
    changed_in: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        world = self.world
        spec = {"global_size": LEAST, "max_global_size": MOST, "adapt": "goodput"}
        self._desk = Desk(high=2, steps=10**6, batch=spec)
        self._ids = self._desk.started(2)
        self._draw, self._normal = random.Random(world.seed), np.random.default_rng(world.seed)
        self._noise = NoiseScale()
        refused = {batch: Refusal(noise_scale=noise, until=REST_ROUNDS) for batch, noise in world.refused.items()}
        state = self._desk.state
        self._state = replace(state, adapting=replace(state.adapting, refused=refused))
        self._cursor = 0
        self.batches.append(LEAST)

    def run(self) -> Replay:
        for round in range(6, ROUNDS + 6):
            plan = self._state.plan
            assert plan is not None
            inputs = self._round(round, plan)
            state = adapt.observe(self._state, inputs)
            turned = adapt.adapt(state, inputs, 0.0)
            self._state = state if turned is None else turned[0]
            assert self._state.plan is not None
            if self._state.plan.global_batch != plan.global_batch:
                self.batches.append(self._state.plan.global_batch)
                self.changed_in.append(round)
        return self

    def _round(self, round: int, plan: Plan) -> Inputs:
        """All workers train under the plan; the first tells of the round."""
        world, batch = self.world, plan.global_batch
        self._cursor += batch
        step_s, passes = world.step_s(round, batch, self._draw), world.num_passes(batch)
        values = {"step_s": step_s, "compute_s": 0.8 * step_s, "workers": 2.0, "global_batch": float(batch)}
        values["micro_batch"] = math.ceil(batch / 2 / passes)
        bounds = self._measure(round, batch, values)
        record = RoundRecord(
            lineage=1, round=round, generation=plan.generation, plan_id=plan.id, cursor=self._cursor, samples=batch,
            time=0.0, values=values, num_passes=passes, noise_bounds=bounds,
        )  # fmt: skip
        built = replace(build_info(), total_samples=10**8, num_train=10 * LEAST)
        workers = dict(self._state.workers)
        for worker_id in self._ids:
            status = workers[worker_id].status
            assert status is not None
            told = replace(
                status, plan=plan, generation=plan.generation, round=round, cursor=self._cursor, build=built,
                micro_size=world.micro, records=(record,) if worker_id == self._ids[0] else (),
            )  # fmt: skip
            workers[worker_id] = replace(workers[worker_id], status=told)
        self._state = replace(self._state, workers=workers)
        statuses = {i: facts.status for i, facts in workers.items() if facts.status is not None}
        return Inputs(unix_s=0.0, direction=self._desk.direction, acked=Acknowledged(), statuses=statuses)

    def _measure(self, round: int, batch: int, values: dict[str, float]) -> tuple[float, float] | None:
        """Tell the noise scale of gradients that are drawn, in the rounds in which workers would."""
        if not self._noise.is_due(round):
            return None
        deviation = (self.world.noise_scale / DIMENSION / (batch / 2)) ** 0.5
        parts_2D = DIMENSION**-0.5 + self._normal.normal(0.0, deviation, (2, DIMENSION))
        squares, whole = float((parts_2D**2).sum()) * batch / 2, float((parts_2D.mean(0) ** 2).sum())
        self._noise.stage(round, estimate(squares, whole, batch, 2), is_preconditioned=False, cost=None)
        self._noise.commit()
        if (value := self._noise.value(batch)) is not None:
            values["noise_scale"] = value
        return self._noise.bounds(batch)


FLAPPING = World(
    noise_scale=1142.5,
    fixed_s=5.4e-3,
    sample_s=2.543e-6,
    jitter=0.1717,
    burst=10,
    micro=64,
    refused={256: 2947.0},
    seed=27,
)


def spread(least: float, most: float) -> st.SearchStrategy[float]:
    """Values that are as often small as large."""
    return st.floats(math.log(least), math.log(most)).map(math.exp)


@given(
    world=st.builds(
        World,
        noise_scale=spread(2.0, 5000.0),
        fixed_s=spread(1e-3, 2e-2),
        sample_s=spread(1e-6, 1e-3),
        jitter=st.floats(0.0, 0.4),
        burst=st.sampled_from((0, 10, 40)),
        micro=st.sampled_from((None, 16, 64)),
        refused=st.dictionaries(st.sampled_from((46, 64, 128, 256)), spread(2.0, 5000.0), max_size=2),
        seed=st.integers(0, 10**6),
    )
)
@example(world=FLAPPING)
@settings(max_examples=10, deadline=None)
def test_no_noise_makes_a_batch_leave_its_bounds_or_go_to_and_fro(world: World) -> None:
    job = Replay(world).run()
    assert all(LEAST <= batch <= MOST for batch in job.batches)
    early = [batch for round, batch in zip(job.changed_in, job.batches[1:], strict=True) if round < REST_ROUNDS]
    surely = [batch for batch, noise_scale in world.refused.items() if noise_scale > 2 * world.noise_scale]
    assert max(early, default=0) < min(surely, default=MOST + 1), job.batches
    grew = [b > a for a, b in pairwise(job.batches)]
    assert sum(a != b for a, b in pairwise(grew)) <= 3, job.batches
    assert len(grew) <= 8, job.batches

"""A larger batch is foreseen in as many forward passes as its memory asks for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.control.test_adapt import NoisyJob
from workers.advisors.throughput import Layout
from workers.control.adapt import _most_a_pass
from workers.measures import Footprint
from workers.plan import Plan, TimelineKind
from workers.status import RoundRecord

PASS_S, A_PASS = 0.05, 64
"""Two workers, and no more than so many samples fit into a pass of either."""


class TightJob(NoisyJob):
    """Its steps take as long as their passes; ``footprint`` is what both workers tell of theirs."""

    def __init__(self, footprint: Footprint | None) -> None:
        self.footprint = footprint
        super().__init__(lambda batch: PASS_S * math.ceil(batch / (2 * A_PASS)) + 1e-5 * batch, lambda _: 4000.0)

    def _record(self, plan: Plan, values: dict[str, float]) -> RoundRecord:
        num_passes = math.ceil(plan.global_batch / (2 * A_PASS))
        own = {"micro_batch": values["micro_batch"] / num_passes, "compute_s": 0.99 * values["step_s"]}
        return replace(super()._record(plan, {**values, **own}), num_passes=num_passes)

    def _say(self, worker_id: str, plan: Plan, records: tuple[RoundRecord, ...]) -> None:
        super()._say(worker_id, plan, records)
        self.desk.statuses[worker_id] = replace(self.desk.statuses[worker_id], footprint=self.footprint)


def held(**more: int | None) -> Footprint:
    told = {"peak_bytes": 10**8, "limit_bytes": 10**9, "fixed_bytes": 10**8, **more}
    return Footprint(**told, sample_bytes=0.9 * 9e8 / (A_PASS + 0.5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("footprint", "is_foreseen"),
    [
        (held(), True),
        (None, False),
        (held(limit_bytes=None), False),
        (held(fixed_bytes=None), False),
        (held(tokens=900), False),  # these are bytes a token
    ],
)
def test_a_batch_that_would_take_another_pass_is_not_tried_where_its_memory_is_foreseen(
    footprint: Footprint | None, is_foreseen: bool
) -> None:
    job = TightJob(footprint).run(300)
    kept = [row.after["is_kept"] for row in job.told(TimelineKind.PROBATION)]
    assert (max(job.batches) == 2 * A_PASS) is is_foreseen
    assert all(kept) is is_foreseen


def test_what_fits_is_foreseen_by_the_parts_of_uneven_workers_and_what_is_measured_fits() -> None:
    assert held().fitting == A_PASS
    assert held(limit_bytes=10**8).fitting == 1
    job = TightJob(held()).run(1)
    state, plan = job.desk.state, job.plans[-1]
    uneven = replace(plan, members=tuple(replace(m, weight=w) for m, w in zip(plan.members, (3.0, 1.0), strict=True)))
    layout = Layout(num_workers=2, num_nodes=1, global_batch=32, num_passes=1)
    assert _most_a_pass(state, plan, layout) == A_PASS
    assert _most_a_pass(state, uneven, layout) == int(A_PASS * 4 / 3 / 2)  # 32 of 42 are the larger part, 64 of 85
    assert _most_a_pass(state, uneven, replace(layout, global_batch=200)) == 100

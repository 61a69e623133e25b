"""The global batch by goodput on steps that a real job took, alone and beside other work: bounds, and no flapping."""

from __future__ import annotations

import bisect
import json
from pathlib import Path
from statistics import mean

import pytest

from tests.control.test_adapt import NoisyJob
from workers.plan import Plan
from workers.status import RoundRecord

RECORDED = json.loads(Path(__file__).with_name("recorded_steps.json").read_text())
LEAST, MOST = 32, 512
NUM_ROUNDS, NUM_LAST = 1800, 600


class RecordedJob(NoisyJob):
    """Its steps are those of the recording in their order, from ``begin`` on; between batches as far between them."""

    def __init__(self, beside: str, begin: int) -> None:
        self.steps = {int(batch): rows for batch, rows in RECORDED["batches"][beside].items()}
        self.at, self.noise = begin, RECORDED["noise_scale"]
        super().__init__(self._recorded_s, self._told, jitter=0.0, bounds=(0.8, 1.25))

    def _between(self, batch: int, column: int) -> float:
        sizes = sorted(self.steps)
        high = min(bisect.bisect_left(sizes, batch), len(sizes) - 1)
        low = max(0, high - 1) if sizes[high] != batch else high
        share = 1.0 if low == high else (batch - sizes[low]) / (sizes[high] - sizes[low])
        small, large = (self.steps[sizes[i]][self.at % len(self.steps[sizes[i]])][column] for i in (low, high))
        return float(small + share * (large - small))

    def _recorded_s(self, batch: int) -> float:
        self.at += 1
        return self._between(batch, 0)

    def _told(self, share: float) -> float:
        return float(self.noise[self.at // 16 % len(self.noise)])

    def _record(self, plan: Plan, values: dict[str, float]) -> RoundRecord:
        return super()._record(plan, {**values, "compute_s": self._between(plan.global_batch, 1)})

    def made_by(self, batch: int) -> float:
        """The progress of a step, in samples of the batch that was asked for."""
        noise = mean(self.noise)
        return batch * (noise + LEAST) / (noise + batch)


@pytest.mark.parametrize("begin", range(0, 290, 58))
@pytest.mark.parametrize("beside", ["alone", "beside"])
def test_on_recorded_steps_a_batch_keeps_its_bounds_settles_and_makes_nearly_the_most_progress(
    beside: str, begin: int
) -> None:
    job = RecordedJob(beside, begin).run(NUM_ROUNDS - NUM_LAST)
    begun_s, num_before, made = job.desk.now, len(job.batches), 0.0
    for _ in range(NUM_LAST):
        made += job.made_by(job.plans[-1].global_batch)
        job.run(1)
    assert LEAST <= min(job.batches) <= max(job.batches) <= MOST
    best = max(job.made_by(batch) / mean(row[0] for row in rows) for batch, rows in job.steps.items())
    assert len(job.batches) - num_before <= 3
    assert made / (job.desk.now - begun_s) > 0.75 * best

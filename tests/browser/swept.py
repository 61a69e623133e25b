"""A sweep with a past: trials that are complete, failed, wait at a rung, were ended there, and one that runs."""

from __future__ import annotations

import math
import random

from service.states import JobState
from service.sweep_records import SweepRow
from tests.browser.sample import Sample
from tests.service.swept import Swept
from tuning.values import Scalar

SWEPT_S = 900.0
"""So long ago it was made."""

NUM_COMPLETE = 9


async def fill_sweep(sample: Sample) -> SweepRow:
    """Accuracy is best at a learning rate of 0.01 and a batch of 64."""
    dice = random.Random(3)
    space = {
        "optimizer.lr": {"log_uniform": [1e-4, 1e-1]},
        "batch.global_size": {"choice": [32, 64, 128]},
        "config.hidden": {"int": [32, 512], "log": True},
    }
    swept = await Swept.created(sample.store, sample.clock, sample.fence, space=space, trials=20)
    for number in range(NUM_COMPLETE):
        point = _point(dice)
        await swept.begin(point)
        await swept.complete(number, _accuracy(point))
    await swept.begin(_point(dice), _point(dice))
    await swept.end(NUM_COMPLETE, JobState.FAILED)
    await swept.report(NUM_COMPLETE + 1, r10=0.31)
    await swept.hold(NUM_COMPLETE + 1)
    await swept.begin(_point(dice), _point(dice))
    await swept.report(NUM_COMPLETE + 2, r10=0.11)
    await swept.prune(NUM_COMPLETE + 2)
    await swept.report(NUM_COMPLETE + 3, r10=0.4)
    await swept.order(optimizer__lr=0.62, batch__global_size=0.27, config__hidden=0.11)
    return await swept.row()


def _point(dice: random.Random) -> dict[str, Scalar]:
    return {
        "optimizer.lr": 10 ** dice.uniform(-4, -1),
        "batch.global_size": dice.choice([32, 64, 128]),
        "config.hidden": dice.randint(32, 512),
    }


def _accuracy(point: dict[str, Scalar]) -> float:
    lr, batch = float(point["optimizer.lr"] or 0), float(point["batch.global_size"] or 0)
    return 0.96 - 0.08 * abs(math.log10(lr) + 2) ** 2 - 0.02 * abs(math.log2(batch / 64))

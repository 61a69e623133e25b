"""What holding a sweep's winner against configurations may use of the sweep's limits."""

from __future__ import annotations

import pytest

from service.cost import Prices
from service.promotion_records import PromotionState
from service.store.opening import Store
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import Clock, spec
from tests.service.swept import Swept, sweep_document

pytestmark = pytest.mark.anyio

PROMOTION_S = 800.0
"""Of one that gives up at the first look: five runs each of three finalists and what is in use, of 40 s."""


@pytest.mark.parametrize("limit", ["time_s", "cost"])
async def test_a_second_promotion_has_what_the_first_one_left(store: Store, clock: Clock, limit: str) -> None:
    allowed = 1.9 * PROMOTION_S  # the trials take a tenth of it
    parsed = read_sweep_spec(sweep_document(limits={limit: allowed}), has_prices=True)
    made = await store.sweeps.create(parsed, sample_job(parsed))
    sweep = await Swept.of(store, clock, made.sweep.id)
    sweep.prices = Prices(cpu_hour=3600.0, gpu_hour=None, currency="EUR")
    await sweep.play()
    await sweep.finish()
    ends = []
    for name in ("first", "second"):
        await store.configurations.create(name, spec(steps=None, samples=3200))
        await store.sweeps.ask_promotion(await sweep.row(), name)
        await sweep.conclude(lambda _: 0.9, lasts_s=lambda _: 40.0)
        view = await store.reconciler.promotion_view(sweep.id)
        assert view is not None
        assert view.promotion is not None
        ends.append(view.promotion)
    assert [each.state for each in ends] == [PromotionState.KEPT, PromotionState.STOPPED]
    told = str(ends[1].reason)
    assert told.startswith(f"limits.{limit}={allowed:g} is reached")
    assert told.endswith("the runs of all its promotions counted")

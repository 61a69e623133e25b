"""Promotions that are stopped, asked for again, and stopped again."""

from __future__ import annotations

import pytest

from service.promotion import step_of
from service.promotion_records import PromotionView
from service.store.opening import Store
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import Clock, spec
from tests.service.swept import Swept, sweep_document

pytestmark = pytest.mark.anyio


async def test_runs_are_ended_also_where_a_later_promotion_was_stopped_before_it_began(
    store: Store, clock: Clock
) -> None:
    parsed = read_sweep_spec(sweep_document(), has_prices=False)
    made = await store.sweeps.create(parsed, sample_job(parsed))
    sweep = await Swept.of(store, clock, made.sweep.id)
    await sweep.play()
    await sweep.finish()
    await store.configurations.create("digits", spec(steps=None, samples=3200))

    async def view() -> PromotionView:
        found = await store.reconciler.promotion_view(sweep.id)
        assert found is not None
        return found

    await store.sweeps.ask_promotion(await sweep.row(), "digits")
    await sweep.compare()
    going_on = {run.job_id for run in (await view()).runs if run.is_open}
    assert going_on
    await store.sweeps.stop_promotion(await sweep.row(), "stopped by hand")
    await store.sweeps.ask_promotion(await sweep.row(), "digits")
    await store.sweeps.stop_promotion(await sweep.row(), "stopped again")
    for _ in range(2):  # cancelled, and then seen to have ended
        step = step_of(seen := await view(), sweep.prices, clock.now_s)
        assert {run.job_id for run in seen.runs} == going_on
        await store.reconciler.carry_promotion(seen, step, sweep.fence)
    latest = (await view()).promotion
    assert latest is not None
    assert (latest.number, latest.reason) == (2, "stopped again")

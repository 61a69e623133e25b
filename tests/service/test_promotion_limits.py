"""What holding a sweep's winner against configurations may use of the sweep's limits."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from service.cost import Prices
from service.promotion_records import PromotionRow, PromotionState
from service.store.opening import Store
from service.store.schema import jobs
from service.sweep_limits import limit_of_ended, used_by
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import Clock, spec
from tests.service.query_plans import noted_statements
from tests.service.swept import Swept, point, sweep_document
from tuning.limits import limit_reached

pytestmark = pytest.mark.anyio

PRICES = Prices(cpu_hour=3600.0, gpu_hour=None, currency="EUR")

PROMOTION_S = 800.0
"""Of one that gives up at the first look: five runs each of three finalists and what is in use, of 40 s."""


async def compared(store: Store, clock: Clock, limit: str, allowed: float, **changes: Any) -> Swept:
    """A sweep with this limit whose winner was held against a configuration, by runs that used ``PROMOTION_S``."""
    sweep = await searched(store, clock, limit, allowed, **changes)
    await store.sweeps.ask_promotion(await sweep.row(), "in-use")
    await sweep.conclude(lambda _: 0.9, lasts_s=lambda _: 40.0)
    return sweep


async def searched(store: Store, clock: Clock, limit: str, allowed: float, **changes: Any) -> Swept:
    """A sweep with this limit that has ended, and a configuration that it may be held against.

    ``changes`` are what that has otherwise than its trials.
    """
    parsed = read_sweep_spec(sweep_document(limits={limit: allowed}), has_prices=True)
    made = await store.sweeps.create(parsed, sample_job(parsed))
    sweep = await Swept.of(store, clock, made.sweep.id)
    sweep.prices = PRICES
    await sweep.play()
    await sweep.finish()
    await store.configurations.create("in-use", spec(steps=None, samples=3200, **changes))
    return sweep


async def promotion_of(store: Store, sweep: Swept) -> PromotionRow:
    view = await store.reconciler.promotion_view(sweep.id)
    assert view is not None
    assert view.promotion is not None
    return view.promotion


async def ended_by(store: Store, sweep: Swept) -> str | None:
    """Which limit would end it at once if it went on."""
    view = await store.sweeps.view(sweep.id)
    assert view is not None
    return limit_of_ended(view, PRICES)


@pytest.mark.parametrize("limit", ["time_s", "cost"])
async def test_what_a_promotion_used_is_no_longer_there_for_further_trials(
    store: Store, clock: Clock, limit: str
) -> None:
    sweep = await compared(store, clock, limit, PROMOTION_S + 150.0)  # the trials take more than 50
    assert await ended_by(store, sweep) is None
    await store.sweeps.extend(await sweep.row(), 9)
    await sweep.begin(point(0.02))
    await sweep.report(5, **{f"r{n}": 0.5 for n in range(10, 100, 10)})
    view = await sweep.view()
    parsed = view.sweep.spec
    used = used_by(parsed, view.sweep.time_s(clock.now_s), view.spent, view.promoted, PRICES)
    reached = limit_reached(parsed.limits, [], "max", used)
    assert reached is not None
    assert reached.startswith(f"limits.{limit}={PROMOTION_S + 150:g} is reached")
    assert reached.endswith(", the runs of its promotions counted")
    await sweep.end(5)
    await sweep.finish()
    assert await ended_by(store, sweep) == reached


@pytest.mark.parametrize("limit", ["time_s", "cost"])
async def test_a_second_promotion_has_what_the_first_one_left(store: Store, clock: Clock, limit: str) -> None:
    allowed = 1.9 * PROMOTION_S  # the trials take a tenth of it
    sweep = await searched(store, clock, limit, allowed)
    ends = []
    for name in ("first", "second"):
        await store.configurations.create(name, spec(steps=None, samples=3200))
        await store.sweeps.ask_promotion(await sweep.row(), name)
        await sweep.conclude(lambda _: 0.9, lasts_s=lambda _: 40.0)
        ends.append(await promotion_of(store, sweep))
    assert [each.state for each in ends] == [PromotionState.KEPT, PromotionState.STOPPED]
    told = str(ends[1].reason)
    assert told.startswith(f"limits.{limit}={allowed:g} is reached")
    assert told.endswith("the runs of all its promotions counted")


async def test_a_contender_without_a_price_leaves_a_limit_of_cost_as_it_is(store: Store, clock: Clock) -> None:
    sweep = await compared(
        store, clock, "cost", PROMOTION_S / 2, resources={"gpus": 1}
    )  # in use, and its runs, unpriced
    promotion = await promotion_of(store, sweep)
    told = f"limits.cost={PROMOTION_S / 2:g} is reached"
    assert (promotion.state, str(promotion.reason)[: len(told)]) == (PromotionState.STOPPED, told)
    assert str(await ended_by(store, sweep)).startswith(told)


async def test_what_a_promotion_that_still_runs_used_is_no_longer_there_either(store: Store, clock: Clock) -> None:
    sweep = await searched(store, clock, "time_s", PROMOTION_S)
    await store.sweeps.ask_promotion(await sweep.row(), "in-use")
    await sweep.compare()
    assert await ended_by(store, sweep) is None
    clock.advance(PROMOTION_S - 1)
    assert (await promotion_of(store, sweep)).state is PromotionState.RUNNING
    told = await ended_by(store, sweep)
    assert told is not None
    await store.sweeps.stop_promotion(await sweep.row(), "stopped by hand")
    assert await ended_by(store, sweep) == told, "as long as it took at last"


async def test_a_run_that_was_counted_took_what_it_took_then_whatever_its_job_says_later(
    store: Store, clock: Clock
) -> None:
    sweep = await compared(store, clock, "cost", 10 * PROMOTION_S)
    await store.database.write_quietly(lambda conn: conn.execute(update(jobs).values(worker_s=7.0)))
    seen = await store.reconciler.promotion_view(sweep.id)
    assert seen is not None
    view = await sweep.view()
    standing = (await store.sweeps.standings([view.sweep]))[sweep.id].promotion
    assert standing is not None
    assert sum(run.seconds for run in seen.runs) == PROMOTION_S
    assert (standing.seconds, sum(each.seconds for each in view.promoted.runs)) == (PROMOTION_S, PROMOTION_S)


@pytest.mark.parametrize(("limit", "unread"), [("time_s", ("contenders",)), ("cost", ())])
async def test_what_promotions_used_is_read_without_what_they_measured(
    store: Store, clock: Clock, limit: str, unread: tuple[str, ...]
) -> None:
    sweep = await compared(store, clock, limit, 10 * PROMOTION_S)
    engine = await store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        assert (await sweep.view()).promoted.time_s == PROMOTION_S
    (read,) = [text for text, _ in statements if "FROM promotions" in text]
    assert [name for name in ("evidence", "seeds", *unread) if name in read] == []

"""What a trial reports after it was ordered to go on from another's state, or could not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.store.opening import Store
from tests.service.given import Clock, checkpoint, leader, record, snapshot
from tests.service.swept import Swept, point
from tuning.orders import Exploit

pytestmark = pytest.mark.anyio

NEW = point(0.02, 64)


async def ordered(store: Store, clock: Clock) -> Swept:
    """Trial 0 is at 640 samples, and its job was ordered to go on from what trial 1 saved at 320."""
    swept = await Swept.created(store, clock, await leader(store), pruner="none")
    await swept.begin(point(0.001), point(0.01))
    await swept.report(0, r10=0.1, r20=0.2)
    await swept.report(1, r10=0.9)
    await swept.order(Exploit(number=0, donor=1, params=NEW, reason="among the worst"))
    giver = await swept.job(1)
    assert ((await swept.trial(0)).course.taking, giver.saves) != (None, 0)
    saved = replace(checkpoint(10), saves=giver.saves)
    await store.reconciler.fold(snapshot(giver, checkpoints=(saved,)), swept.fence)
    await swept.look()
    job = await swept.job(0)
    assert job.settings is not None
    assert job.settings.donor is not None
    assert (job.settings.lr, job.settings.global_batch, job.settings.donor.path) == (0.02, 64, saved.path)
    assert ((await swept.trial(0)).params, (await swept.trial(0)).samples) == (NEW, 640)
    return swept


async def test_reports_of_the_state_that_was_given_up_end_where_the_other_goes_on(store: Store, clock: Clock) -> None:
    swept = await ordered(store, clock)
    await swept.report(0, r21=0.2)  # it comes late
    told = [record(round, lineage=2, eval__accuracy=0.95) for round in (11, 12)]
    await store.reconciler.fold(snapshot(await swept.job(0), told), swept.fence)
    await swept.look()
    trial = await swept.trial(0)
    assert [(r.samples, r.value) for r in trial.reports] == [(320, 0.1), (352, 0.95), (384, 0.95)]
    assert not trial.for_search().is_changing
    assert [(c.donor, c.samples, c.given_up) for c in trial.course.changes] == [(1, 320, 640)]


async def test_a_trial_that_goes_on_with_its_own_state_is_told_as_such(store: Store, clock: Clock) -> None:
    swept = await ordered(store, clock)
    for n in range(21, 26):
        assert (await swept.trial(0)).for_search().is_changing
        await swept.report(0, **{f"r{n}": 0.3})
    trial = await swept.trial(0)
    assert not trial.for_search().is_changing
    assert [(c.donor, c.samples) for c in trial.course.changes] == [(None, 640)]
    assert trial.samples == 25 * 32


async def test_a_donor_that_does_not_save_in_time_leaves_the_trial_as_it_was(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store), pruner="none")
    await swept.begin(point(0.001), point(0.01))
    await swept.order(Exploit(number=0, donor=1, params=NEW, reason="among the worst"))
    clock.now_s += 61
    await swept.look()
    trial = await swept.trial(0)
    assert (trial.course.taking, trial.params, trial.course.changes) == (None, point(0.001), ())
    assert (await swept.job(0)).settings is None

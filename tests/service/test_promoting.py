"""A sweep's winner held against a configuration by the leader, over a real store and workers in memory."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service import configuration_words
from service.configuration_records import ConfigurationRow, Origin
from service.cost import Prices
from service.promotion import contest_of, step_of
from service.promotion_records import INCUMBENT, PromotionState, PromotionView
from service.records import JobRow
from service.states import JobState
from service.store.opening import Store
from service.store.port import StaleRowError
from service.sweep_records import SweepRow, SweepState
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import Clock, leader, spec
from tests.service.scene import Scene
from tests.service.swept import Swept, point
from tuning.promotion_plan import LOOKS
from workers.errors import Reason
from workers.spec import JobSpec

pytestmark = pytest.mark.anyio
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""The rows are the same on any database: one history on each is enough."""

JOB: dict[str, Any] = {
    "entrypoint": "workers.recipes.digits:build",
    "samples": 160,
    "steps": None,
    "batch": {"global_size": 8},
    "workers": {"min": 1, "max": 1},
}
BETTER_LR = 0.05


def accuracy(gain: float) -> Callable[[JobSpec], dict[str, float]]:
    """By chance alone, of which most is a seed's, but ``gain`` for one learning rate."""

    def of(job: JobSpec) -> dict[str, float]:
        seed, own = random.Random(job.seed), random.Random(f"{job.seed} {job.optimizer.lr}")
        value = 0.9 + seed.gauss(0, 0.01) + own.gauss(0, 0.002) + gain * (job.optimizer.lr == BETTER_LR)
        return {"eval.accuracy": value}

    return of


async def swept(scene: Scene, gain: float, **changes: Any) -> SweepRow:
    """A sweep of three trials that is to replace the configuration digits."""
    scene.cluster.values, scene.cluster.num_cpus = accuracy(gain), 16.0
    configuration = await scene.store.configurations.create("digits", spec(**JOB, labels={"team": "a"}))
    document = {
        "name": "lr",
        "job": {"from": "digits"},
        "space": {"optimizer.lr": {"choice": [0.01, BETTER_LR, 0.1]}},
        "metric": "eval.accuracy",
        "sampler": "grid",
        "pruner": "none",
        "trials": 3,
        "parallel": 8,
        "promote": "digits",
        **changes,
    }
    parsed = read_sweep_spec(document, has_prices=False, configuration=configuration)
    return (await scene.store.sweeps.create(parsed, sample_job(parsed), origin=Origin("digits", 1))).sweep


async def configuration(scene: Scene) -> ConfigurationRow:
    found = await scene.store.configurations.configuration("digits")
    assert found is not None
    return found


async def until(scene: Scene, sweep: SweepRow, holds: Callable[[PromotionView], bool]) -> PromotionView:
    for _ in range(4000):
        await scene.reconciler.tick()
        view = await scene.store.reconciler.promotion_view(sweep.id)
        assert view is not None
        if view.promotion is not None and holds(view):
            return view
        await asyncio.sleep(0.005)
    raise AssertionError(f"never came true; last: {view}")


def has_ended(view: PromotionView) -> bool:
    assert view.promotion is not None
    is_over = view.promotion.state is not PromotionState.RUNNING
    return is_over and not any(run.is_open or run.is_news for run in view.runs)


def has_begun(view: PromotionView) -> bool:
    return any(not run.is_open for run in view.runs)


async def jobs_of(scene: Scene, view: PromotionView) -> list[JobRow]:
    found = [await scene.store.reconciler.job(run.job_id) for run in view.runs]
    return [job for job in found if job is not None]


async def test_a_winner_that_is_really_better_replaces_the_configuration_whoever_leads(scene: Scene) -> None:
    sweep = await swept(scene, gain=0.02)
    await until(scene, sweep, has_begun)
    await scene.restart()
    view = await until(scene, sweep, has_ended)
    promotion = view.promotion
    assert promotion is not None
    assert (promotion.state, promotion.version) == (PromotionState.PROMOTED, 2)
    found = await scene.store.configurations.view("digits", 10)
    assert found is not None
    now, (before,) = found[0], found[1].rows
    assert (now.version, now.document["optimizer"]["lr"], now.document["labels"]) == (2, BETTER_LR, {"team": "a"})
    assert (before.version, before.by, before.document["optimizer"]["lr"]) == (1, sweep.id, 0.001)
    assert before.evidence is not None
    (measured,) = [each for each in before.evidence["finalists"] if each["trial"] == before.evidence["trial"]]
    assert measured["num_pairs"] == LOOKS[1]
    assert measured["low"] < 0.02 / 0.9 < measured["high"]
    # All on the same seeds, which none was searched with; each pair once, whoever led.
    jobs = await jobs_of(scene, view)
    seeds = {
        number: [j.spec.seed for j, r in zip(jobs, view.runs, strict=True) if r.contender == number]
        for number in {run.contender for run in view.runs}
    }
    longest = seeds[INCUMBENT]
    assert all(of == longest[: len(of)] for of in seeds.values())
    assert len(set(longest)) == len(longest) == LOOKS[1]
    assert 0 not in longest
    assert {job.spec.labels["promotion"] for job in jobs} == {sweep.id}
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    row = await scene.store.sweeps.sweep(sweep.id)
    assert row is not None
    assert (row.state, row.promote_to) == (SweepState.SUCCEEDED, None)


@on_sqlite
async def test_luck_replaces_nothing(scene: Scene, clock: Clock) -> None:
    scene.clock = clock  # stands still, so that nothing costs anything
    await scene.restart()
    sweep = await swept(scene, gain=0.0)
    view = await until(scene, sweep, has_ended)
    assert view.promotion is not None
    assert view.promotion.state is PromotionState.KEPT
    assert str(view.promotion.reason).startswith("not distinguishable: after ")
    assert (await configuration(scene)).version == 1


async def test_of_what_cannot_be_told_apart_the_cheaper_is_in_use_from_then_on(store: Store, clock: Clock) -> None:
    await store.configurations.create("digits", spec(**JOB))
    sweep = await Swept.created(store, clock, await leader(store), promote="digits")
    await sweep.play()
    await sweep.finish()
    await sweep.compare()
    await sweep.conclude(lambda _: 0.9, lasts_s=lambda contender: 10.0 if contender == 1 else 40.0)
    found = await store.configurations.view("digits", 10)
    assert found is not None
    assert (found[0].version, found[0].document["optimizer"]["lr"]) == (2, 0.01)
    told = configuration_words.evidence(found[1].rows[0].evidence)
    assert told.startswith("trial 1 (optimizer.lr 0.01, batch.global_size 64) costs 75 % less and is as good: better")
    view = await store.reconciler.promotion_view(sweep.id)
    assert view is not None
    assert view.promotion is not None
    assert str(view.promotion.reason).endswith("; trial 1 is as good and cheaper")


@on_sqlite
async def test_where_a_run_of_what_is_in_use_fails_nothing_is_decided_and_it_may_be_asked_again(scene: Scene) -> None:
    sweep = await swept(scene, gain=0.02)
    view = await until(
        scene,
        sweep,
        lambda view: any((run.contender, run.pair, run.is_open) == (INCUMBENT, 0, False) for run in view.runs),
    )
    runs = tuple(replace(run, score=None) if run.contender == INCUMBENT else run for run in view.runs)
    end = step_of(replace(view, runs=runs), Prices(None, None, "EUR"), 0.0).end
    assert end is not None
    assert end.state is PromotionState.FAILED
    assert end.reason.startswith("a run of the incumbent has failed, so nothing can be compared")


async def test_nobody_is_always_the_first_of_its_pair(store: Store, clock: Clock) -> None:
    await store.configurations.create("digits", spec(**JOB))
    sweep = await Swept.created(store, clock, await leader(store), promote="digits", parallel=40)
    await sweep.play()
    await sweep.finish()
    await sweep.compare()
    view = await store.reconciler.promotion_view(sweep.id)
    assert view is not None
    begun = step_of(replace(view, runs=()), sweep.prices, clock.now_s).start
    assert [pair for _, pair in begun] == sorted(pair for _, pair in begun)
    firsts = {next(number for number, of in begun if of == pair) for pair in range(LOOKS[0])}
    assert len(firsts) > 1


async def test_each_sweep_compares_on_seeds_of_its_own(store: Store, clock: Clock) -> None:
    await store.configurations.create("digits", spec(**JOB))
    fence, seeds = await leader(store), list[set[int]]()
    for _ in range(2):  # as of one schedule, night by night
        sweep = await Swept.created(store, clock, fence, promote="digits")
        await sweep.play()
        await sweep.finish()
        view = await store.reconciler.promotion_view(sweep.id)
        assert view is not None
        seeds.append(set(contest_of(view).seeds))
        await sweep.compare()
    assert [len(each) for each in seeds] == [LOOKS[-1]] * 2
    assert not seeds[0] & seeds[1]


@pytest.mark.parametrize(
    ("resources", "prices", "is_cheaper"),
    [({"cpus": 2}, (None, None), False), ({"cpus": 2}, (0.5, None), True), ({"gpus": 1}, (None, 2.0), False)],
)
async def test_where_workers_differ_prices_of_both_tell_which_is_the_cheaper(
    store: Store, clock: Clock, resources: dict[str, int], prices: tuple[float | None, float | None], is_cheaper: bool
) -> None:
    await store.configurations.create("digits", spec(**JOB, resources=resources))
    sweep = await Swept.created(store, clock, await leader(store), promote="digits")
    await sweep.play()
    await sweep.finish()
    await sweep.compare()
    sweep.prices = Prices(*prices, "EUR")
    await sweep.conclude(lambda _: 0.9, lasts_s=lambda _: 40.0)
    row = await store.configurations.configuration("digits")
    assert row is not None
    assert (row.version == 2) == is_cheaper


@on_sqlite
@pytest.mark.parametrize(
    ("is_anew", "changed", "way_on"),
    [(False, {"seed": 3}, "one found"), (True, {"seed": 3}, "one found"), (False, {"labels": {}}, "promote again")],
)
async def test_what_was_changed_by_hand_meanwhile_is_not_overwritten(
    scene: Scene, is_anew: bool, changed: dict[str, Any], way_on: str
) -> None:
    sweep, rows = await swept(scene, gain=0.02), scene.store.configurations
    await until(scene, sweep, has_begun)
    by_hand = spec(**{**JOB, "labels": {"team": "a"}, **changed})
    if is_anew:
        await rows.delete(await configuration(scene))
        await rows.create("digits", by_hand)
    else:
        await rows.replace(await configuration(scene), by_hand)
    view = await until(scene, sweep, has_ended)
    assert view.promotion is not None
    assert view.promotion.state is PromotionState.FAILED
    told = "was deleted and put anew meanwhile" if is_anew else "it is at version 2, compared was version 1"
    assert re.search(f"{told}.*{way_on}$", str(view.promotion.reason))
    found = await configuration(scene)
    assert (found.version, changed.items() <= found.document.items()) == (1 if is_anew else 2, True)


@on_sqlite
@pytest.mark.parametrize("is_anew", [False, True])
async def test_what_was_changed_by_hand_before_it_began_is_not_overwritten_either(scene: Scene, is_anew: bool) -> None:
    sweep, store, changed = await swept(scene, gain=0.02), scene.store.configurations, spec(**JOB, env={"FIX": "1"})
    if is_anew:
        await store.delete(await configuration(scene))
        await store.create("digits", changed)
    else:
        await store.replace(await configuration(scene), changed)
    view = await until(scene, sweep, has_ended)
    assert view.promotion is not None
    assert (view.promotion.state, view.runs) == (PromotionState.FAILED, ())
    told = "was deleted and put anew" if is_anew else "is at version 2, the sweep began from version 1"
    assert told in str(view.promotion.reason)
    assert (await configuration(scene)).document["env"] == {"FIX": "1"}


async def test_no_population_is_promoted_that_was_to_be_before_it_was_refused(store: Store, clock: Clock) -> None:
    given = {"population": "pbt", "pruner": "none", "trials": 2, "parallel": 2}
    sweep = await Swept.created(store, clock, await leader(store), **given)
    await store.configurations.create("digits", spec(**JOB))
    await sweep.begin(point(0.001), point(0.01))
    await sweep.complete(0, 0.9)
    await sweep.complete(1, 0.97)
    await sweep.finish()
    await store.sweeps.ask_promotion(await sweep.row(), "digits")
    await sweep.compare()
    view = await store.reconciler.promotion_view(sweep.id)
    assert view is not None
    assert view.promotion is not None
    assert (view.promotion.state, view.runs) == (PromotionState.FAILED, ())
    assert "changes values on the way" in str(view.promotion.reason)


@pytest.mark.parametrize("how", ["changed", "anew", "created"])
async def test_what_was_changed_by_hand_while_it_was_decided_who_is_compared_is_looked_at_again(
    store: Store, clock: Clock, how: str
) -> None:
    sweep, rows = await Swept.created(store, clock, await leader(store)), store.configurations
    await sweep.play()
    await sweep.finish()
    before = await rows.create("digits", spec(**JOB))
    await store.sweeps.ask_promotion(await sweep.row(), "digits")
    if how == "created":
        await rows.delete(before)
    view = await store.reconciler.promotion_view(sweep.id)
    assert view is not None
    contest, by_hand = contest_of(view), spec(**JOB, env={"FIX": "1"})
    assert (contest.refusal is None) == (how != "created")
    if how == "changed":
        await rows.replace(before, by_hand)
    else:
        if how == "anew":
            await rows.delete(before)
        await rows.create("digits", by_hand)
    with pytest.raises(StaleRowError, match="configuration digits"):
        await store.reconciler.begin_promotion(view, contest, sweep.fence)
    assert (await sweep.row()).promote_to == "digits"
    await sweep.compare()
    view = await store.reconciler.promotion_view(sweep.id)
    assert view is not None
    assert view.promotion is not None
    assert view.promotion.contenders[0].job["env"] == {"FIX": "1"}
    assert view.promotion.base_version == (2 if how == "changed" else 1)


@on_sqlite
async def test_how_it_is_filed_may_change_meanwhile_and_stays_so(scene: Scene) -> None:
    sweep = await swept(scene, gain=0.02)
    await scene.store.configurations.replace(await configuration(scene), spec(**JOB, labels={"team": "b"}))
    view = await until(scene, sweep, has_ended)
    assert view.promotion is not None
    assert view.promotion.state is PromotionState.PROMOTED
    found = await configuration(scene)
    assert (found.version, found.document["labels"], found.document["optimizer"]["lr"]) == (3, {"team": "b"}, BETTER_LR)


@on_sqlite
async def test_a_stop_ends_the_runs_that_go_on(scene: Scene) -> None:
    sweep = await swept(scene, gain=0.02)
    # It has begun, and its first runs start at the next tick.
    await until(scene, sweep, lambda view: not view.runs)
    scene.cluster.total = 1_000_000
    view = await until(scene, sweep, lambda view: any(run.job_state is JobState.RUNNING for run in view.runs))
    await scene.reconciler.settle(5)
    row = await scene.store.sweeps.sweep(sweep.id)
    assert row is not None
    await scene.store.sweeps.stop_promotion(row, "stopped by hand")
    view = await until(scene, sweep, has_ended)
    assert view.promotion is not None
    assert (view.promotion.state, view.promotion.reason) == (PromotionState.STOPPED, "stopped by hand")
    ends = {(job.state, job.reason) for job in await jobs_of(scene, view) if job.state is not JobState.SUCCEEDED}
    assert ends == {(JobState.CANCELLED, Reason.CANCELLED_BY_SWEEP)}


@on_sqlite
async def test_its_runs_count_against_the_limits_of_the_sweep(scene: Scene) -> None:
    sweep = await swept(scene, gain=0.02)
    view = await until(scene, sweep, has_begun)
    await scene.reconciler.settle(5)
    assert view.promotion is not None
    begun_s = view.promotion.created_at
    paid = tuple(replace(run, seconds=60.0) for run in view.runs)
    prices = Prices(cpu_hour=60.0, gpu_hour=None, currency="EUR")
    for limits, at_s, told in (
        ({"time_s": 3600}, begun_s + 3599, None),
        ({"time_s": 3600}, begun_s + 3600, "limits.time_s=3600 is reached"),
        ({"cost": len(paid) + 0.5}, begun_s, None),
        ({"cost": len(paid)}, begun_s, "limits.cost"),
    ):
        limited = view.sweep.document | {"limits": {"trials_without_improvement": 1, **limits}}
        seen = replace(view, sweep=replace(view.sweep, spec_json=json.dumps(limited)), runs=paid)
        end = step_of(seen, prices, at_s).end
        assert (end is None) == (told is None)
        assert end is None or (end.state, str(told) in end.reason) == (PromotionState.STOPPED, True)


@on_sqlite
async def test_a_jump_of_the_clock_does_not_reach_a_limit_of_time(scene: Scene, clock: Clock) -> None:
    scene.clock = clock
    await scene.restart()
    sweep = await swept(scene, gain=0.02, limits={"time_s": 3600})
    await until(scene, sweep, has_begun)
    clock.advance(86_400)
    view = await until(scene, sweep, has_ended)
    assert view.promotion is not None
    assert view.promotion.state is not PromotionState.STOPPED, view.promotion.reason


@on_sqlite
async def test_a_configuration_that_is_gone_by_then_is_told(scene: Scene) -> None:
    sweep = await swept(scene, gain=0.02)
    row = await scene.store.configurations.configuration("digits")
    assert row is not None
    await scene.store.configurations.delete(row)
    view = await until(scene, sweep, has_ended)
    assert view.promotion is not None
    assert view.promotion.state is PromotionState.FAILED
    assert "there is no configuration 'digits' any more" in str(view.promotion.reason)

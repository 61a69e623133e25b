"""Shares by speed as the controller's turns carry them out: found, agreed, judged, kept or taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import SETTINGS, checkpoint
from tests.control.uneven_job import CostOf, UnevenJob
from workers.advisors.judging import JUDGE_STEPS
from workers.control.sharing import NUM_BEFORE
from workers.plan import Plan, Switch, TimelineKind
from workers.status import Phase, StopCause


def line(sample_s: float, fixed_s: float = 0.0) -> CostOf:
    return lambda part: fixed_s + sample_s * part


def weights(plan: Plan) -> list[float]:
    return [member.weight for member in plan.members]


def test_a_slow_worker_gets_less_in_the_same_group_and_the_gain_is_told_as_expected_and_as_found() -> None:
    job = UnevenJob(line(0.01), line(0.03))
    first = job.desk.plan
    job.run(30)
    [plan] = job.plans[1:]
    assert job.parts == (96, 32)
    assert (plan.switch, plan.generation, plan.worker_ids) == (Switch.AGREED, first.generation, first.worker_ids)
    [row] = job.told(TimelineKind.BATCH)
    assert (row.actor, row.before, row.after) == (
        "shares",
        {"parts": [64, 64]},
        {"parts": [96, 32], "expected_gain": 2.0},
    )
    assert row.reason == (
        "worker 1.2 takes 3.0 times as long a sample as the fastest; parts 96 and 32 instead of 64 and 64, "
        "expected 2.00 times as fast"
    )
    [judged] = job.told(TimelineKind.PROBATION)
    assert (judged.after["gain"], judged.after["error"], judged.after["is_kept"]) == (pytest.approx(2.0), 0.0, True)
    assert judged.reason == "parts 96 and 32 are 2.00 times as fast as 64 and 64 (expected: 2.00)"


def test_a_round_of_several_steps_takes_no_longer_a_step() -> None:
    job = UnevenJob(line(0.01), line(0.03))
    job.num_steps = 25
    job.run(30)
    [row] = job.told(TimelineKind.BATCH)
    assert (job.parts, row.after["expected_gain"]) == ((96, 32), 2.0)


def test_fixed_times_are_learnt_by_the_first_change_and_made_good_by_a_second() -> None:
    job = UnevenJob(line(0.01), line(0.01, fixed_s=1.0)).run(80)
    assert job.parts == pytest.approx((114, 14), abs=4)
    assert [row.after["is_kept"] for row in job.told(TimelineKind.PROBATION)] == [True, True]


def test_a_change_is_measured_by_all_steps_with_the_parts_before_it_unless_a_worker_has_changed_its_speed() -> None:
    job, before = UnevenJob(line(0.01), line(0.01, fixed_s=1.0)), []
    for _ in range(80):
        job.run(1)
        trial = job.desk.state.sharing.trial
        before += [] if trial is None else [trial.rate.num_steps]
    assert len(job.told(TimelineKind.PROBATION)) == 2
    assert before[-1] >= JUDGE_STEPS  # by which the first was judged, at which the second began
    job.costs["1.2"] = line(0.2)
    while (trial := job.desk.state.sharing.trial) is None and job.round < 150:
        job.run(1)
    assert trial is not None
    assert trial.rate.num_steps == NUM_BEFORE


def test_what_does_not_pay_is_taken_back_and_tried_again_ever_later() -> None:
    job = UnevenJob(line(0.0, fixed_s=1.0), line(0.0, fixed_s=3.0))
    job.run(30)
    assert job.parts == (64, 64)
    [judged] = job.told(TimelineKind.PROBATION)
    assert (judged.after["is_kept"], judged.reason[-12:]) == (False, "; taken back")
    assert job.told(TimelineKind.BATCH)[-1].reason == "parts 64 and 64 again, as 96 and 32 did not pay"
    assert len(job.plans) == 3
    job.run(int(SETTINGS.review_s / 3) - 30)
    assert len(job.plans) == 3


@pytest.mark.parametrize("seed", range(3))
def test_noise_moves_nothing(seed: int) -> None:
    job = UnevenJob(*[line(0.01)] * 4, noise=0.10, seed=seed).run(1000)
    assert len(job.plans) == 1


class RaggedJob(UnevenJob):
    """Its rounds differ by a quarter in what they cost, by the lengths of their samples."""

    length_spread = 1.5


@pytest.mark.parametrize("seed", range(2, 5))
def test_rounds_of_longer_samples_move_nothing(seed: int) -> None:
    job = RaggedJob(line(0.01), line(0.01), noise=0.05, seed=seed).run(1000)
    assert len(job.plans) == 1


@pytest.mark.parametrize("seed", range(2, 5))
def test_parts_of_samples_with_lengths_are_judged_by_the_tokens_of_steps(seed: int) -> None:
    job = RaggedJob(line(0.01), line(0.03), seed=seed).run(60)
    assert job.parts == pytest.approx((96, 32), abs=1)
    [judged] = job.told(TimelineKind.PROBATION)
    assert judged.after["gain"] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_unequal_workers_under_noise_are_balanced_once(seed: int) -> None:
    job = UnevenJob(line(0.01), line(0.0125), line(0.02), line(0.033), noise=0.10, seed=seed).run(1000)
    kept = [row.after["is_kept"] for row in job.told(TimelineKind.PROBATION)]
    assert kept == [True]
    assert job.parts == pytest.approx((49, 39, 25, 15), abs=3)


def test_a_worker_that_slows_down_is_relieved_at_once_and_gets_its_part_back_when_it_recovers() -> None:
    job = UnevenJob(line(0.01), line(0.01), noise=0.03).run(60)
    job.costs["1.2"] = line(0.02)
    before_s = job.desk.now
    job.run(20)
    assert job.parts == pytest.approx((85, 43), abs=3)
    assert job.desk.now - before_s < SETTINGS.review_s / 2
    job.run(20).costs["1.2"] = line(0.01)
    job.run(30)
    assert job.parts == pytest.approx((64, 64), abs=3)


@pytest.mark.parametrize("fixed_s", [0.0, 0.2])
@pytest.mark.parametrize("times", [10, 50, 200])
def test_a_worker_that_was_very_slow_gets_its_part_back_within_a_few_trials(times: int, fixed_s: float) -> None:
    job = UnevenJob(line(0.01, fixed_s), line(0.01, fixed_s), noise=0.03).run(60)
    job.costs["1.2"] = line(0.01 * times, fixed_s * times)
    assert job.run(120).parts[1] <= 11
    num_before = len(job.told(TimelineKind.PROBATION))
    job.costs["1.2"] = line(0.01, fixed_s)
    assert job.run(120).parts == pytest.approx((64, 64), abs=6)
    found = [row.after["is_kept"] for row in job.told(TimelineKind.PROBATION)[num_before:]]
    assert found == [True] * len(found)
    assert len(found) <= 6  # from 1 sample to 64 by doubling, each trial at once after the one before


@pytest.mark.parametrize("seed", [3, 7])
def test_one_that_was_very_slow_gets_its_part_back_soon_where_steps_differ_by_more_than_each_trial_brings(
    seed: int,
) -> None:
    job = UnevenJob(line(0.01, 0.4), line(0.01, 0.4), noise=0.1, seed=seed).run(60)
    job.costs["1.2"] = line(0.06, 2.4)
    assert job.run(120).parts[1] <= 4
    recovered_s, job.costs["1.2"] = job.desk.now, line(0.01, 0.4)
    while job.parts[1] < 50 and job.desk.now - recovered_s < 1.5 * SETTINGS.review_s:
        job.run(1)
    assert job.parts == pytest.approx((64, 64), abs=14)


def test_a_worker_that_is_fast_with_a_few_samples_only_is_tried_with_twice_as_many_at_most() -> None:
    job = UnevenJob(line(0.01), lambda part: 0.1 + 0.001 * part + 0.2 * max(0, part - 11), noise=0.03).run(1500)
    tried = [(row.before["parts"][1], row.after["parts"][1]) for row in job.told(TimelineKind.PROBATION)]
    grown = [after / before for before, after in tried if after > before]
    assert len(grown) > 1
    assert max(grown) <= 2.0
    assert 7 <= job.parts[1] <= 16


@pytest.mark.parametrize("num_before", range(60, 66))
def test_parts_for_a_worker_that_slowed_down_are_held_against_steps_since_then(num_before: int) -> None:
    job = UnevenJob(line(0.01), line(0.01), noise=0.03).run(num_before)
    job.costs["1.2"] = line(0.03)
    job.run(70)
    kept = [row.after["is_kept"] for row in job.told(TimelineKind.PROBATION)]
    assert kept
    assert all(kept)


def test_a_trial_ends_without_a_word_where_a_worker_changes_its_speed_meanwhile() -> None:
    job = UnevenJob(line(0.01), line(0.012), noise=0.08)
    while job.desk.state.sharing.trial is None:
        job.run(1)
    job.run(12)
    assert job.desk.state.sharing.trial is not None  # so small a gain takes long to tell from noise
    on_trial = list(job.parts)
    job.costs["1.1"] = line(0.04)
    job.run(60)
    assert job.parts == pytest.approx((30, 98), abs=4)
    [judged] = job.told(TimelineKind.PROBATION)
    assert judged.before["parts"] == on_trial


def test_a_worker_alone_and_a_job_about_to_end_are_left_alone() -> None:
    assert len(UnevenJob(line(0.01)).run(40).plans) == 1
    job = UnevenJob(line(0.01), line(0.03))
    job.round = 99_950
    assert len(job.run(40).plans) == 1


def test_survivors_keep_their_shares_and_newcomers_get_the_mean_of_them() -> None:
    job = UnevenJob(line(0.01), line(0.02), line(0.04)).run(40)
    desk, before = job.desk, dict(zip(job.ids, weights(job.desk.plan), strict=True))
    assert sorted(before.values()) == [18, 36, 74]
    desk.direction = replace(desk.direction, num_workers=4)
    desk.turn()
    desk.say("1.4", Phase.READY)
    desk.turn()
    assert weights(desk.plan) == [*before.values(), pytest.approx(128 / 3)]
    ids = [*job.ids, "1.4"]
    desk.train(*ids, round=50)
    desk.turn()
    for i in ids[1:]:
        desk.stop(i, StopCause.PEER)
    desk.turn(lost={"1.1": "killed"})
    desk.turn()
    assert desk.plan.worker_ids == ("1.2", "1.3", "1.4")
    assert weights(desk.plan) == [before["1.2"], before["1.3"], pytest.approx(128 / 3)]


def test_a_size_is_judged_by_its_best_parts_and_not_before_they_are_found() -> None:
    job = UnevenJob(line(0.01), line(0.01), run=6).run(40)
    desk = job.desk
    desk.direction = replace(desk.direction, num_offered=3)
    while desk.state.sizing.ask is None:
        job.run(1)
    desk.direction = replace(desk.direction, num_workers=3)
    desk.turn()
    desk.say("1.3", Phase.READY)
    desk.turn()
    job.join("1.3", line(0.04))
    job.run(40)  # three runs of six to find the parts, and three to judge them
    assert job.parts == pytest.approx((57, 57, 14), abs=2)
    [shared, sized] = job.told(TimelineKind.PROBATION)
    assert (shared.actor, sized.actor, sized.after["is_kept"]) == ("shares", "scaling", True)
    assert sized.after["gain"] == pytest.approx(64 / 57, abs=0.03)  # with even parts it would be slower than before


def test_another_size_is_weighed_by_the_speed_with_the_parts_in_force() -> None:
    job = UnevenJob(line(0.01), line(0.01)).run(80)
    job.costs["1.2"] = line(0.04)
    job.run(30)
    assert job.parts == pytest.approx((102, 26), abs=1)
    job.desk.direction = replace(job.desk.direction, num_offered=3)
    while job.desk.state.sizing.ask is None:
        job.run(1)
    assert job.desk.state.sizing.ask.before.samples_per_s == pytest.approx(128 / 1.03, rel=0.02)


def test_after_a_restore_all_are_even_again() -> None:
    job = UnevenJob(line(0.01), line(0.03)).run(30)
    desk = job.desk
    desk.latest = checkpoint(20)
    desk.turn(lost={"1.1": "killed", "1.2": "killed"})
    desk.turn()
    for i in ("1.3", "1.4"):
        desk.say(i, Phase.READY)
    desk.turn()
    assert desk.plan.worker_ids == ("1.3", "1.4")
    assert weights(desk.plan) == [1.0, 1.0]


def test_a_straggler_that_no_share_is_small_enough_for_is_named_once() -> None:
    job = UnevenJob(line(0.001), line(0.001), line(0.001, fixed_s=2.0))
    job.run(400)
    [row] = [row for row in job.told(TimelineKind.LIMIT) if row.key.startswith("straggler/")]
    assert row.after == {"worker_id": "1.3", "node_id": "n"}
    assert row.reason.startswith("worker 1.3 cannot be balanced away: a step takes it 1.97 s")


def test_a_straggler_that_recovers_and_slows_down_again_is_named_again() -> None:
    slow = line(0.001, fixed_s=2.0)
    job = UnevenJob(line(0.001), line(0.001), slow).run(100)
    job.costs["1.3"] = line(0.001)
    job.run(300).costs["1.3"] = slow
    job.run(100)
    rows = [row for row in job.told(TimelineKind.LIMIT) if row.key.startswith("straggler/")]
    assert [row.after["worker_id"] for row in rows] == ["1.3", "1.3"]
    assert len({row.key for row in rows}) == 2


def test_a_straggler_that_is_one_by_a_hair_is_not_named_again_with_the_noise() -> None:
    job = UnevenJob(line(0.05), line(0.05), line(0.0, fixed_s=4.05), noise=0.1).run(2000)
    assert len([row for row in job.told(TimelineKind.LIMIT) if row.key.startswith("straggler/")]) == 1

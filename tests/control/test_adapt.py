"""The global batch by goodput as the controller's turns carry it out: grown, judged, kept or taken back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from tests.control.desk import Desk, build_info
from workers.advisors.throughput import Layout, Observation
from workers.control.adapt import NO_NOISE, ROUGH_NOISE
from workers.control.adapting import (
    JUDGE_STEPS,
    MAX_JUDGE_STEPS,
    MIN_STEPS,
    MOST_AN_EPOCH,
    NUM_SETTLING,
    REST_ROUNDS,
    Adapting,
    change,
    current,
    may_change,
    model,
)
from workers.lr import Decay
from workers.plan import Plan, Switch, TimelineKind
from workers.run_settings import RunSettings
from workers.status import Phase, RoundRecord, StopCause, TimelineRow

EPOCH = 2000
STEPS = 20_000


class NoisyJob:
    """Two workers whose steps take ``step_s`` of the batch; the noise scale is ``noise_scale`` of the progress.

    ``bounds`` are told with it, as shares of it.
    """

    def __init__(
        self,
        step_s: Callable[[int], float],
        noise_scale: Callable[[float], float | None],
        jitter: float = 0.02,
        epoch: int = EPOCH,
        bounds: tuple[float, float] | None = (1.0, 1.0),
        **batch: object,
    ) -> None:
        spec = {"global_size": 32, "adapt": "goodput", "max_global_size": 512, **batch}
        self.desk = Desk(high=2, batch=spec, steps=STEPS, lr_schedule={"decay": "constant", "warmup_fraction": 0.05})
        self.ids = self.desk.started(2)
        self.step_s, self.noise_scale, self.jitter, self.epoch = step_s, noise_scale, jitter, epoch
        self.bounds = bounds
        self.round, self.cursor = 5, 160
        self.rows: list[TimelineRow] = []
        self.values: dict[str, float] = {}
        self.plans = [self.desk.plan]
        self._rng = random.Random(1)

    @property
    def batches(self) -> list[int]:
        return [batch for batch, _ in groupby(plan.global_batch for plan in self.plans)]

    def run(self, num_rounds: int) -> NoisyJob:
        for _ in range(num_rounds):
            self._step()
        return self

    def regroup(self, num_workers: int) -> NoisyJob:
        """Go on in another group of the first so many."""
        desk, lost, self.ids = self.desk, self.ids[num_workers:], self.ids[:num_workers]
        desk.direction = replace(desk.direction, num_workers=num_workers)
        if lost:
            desk.turn(lost=dict.fromkeys(lost, "killed"))
        for worker_id in self.ids:
            desk.stop(worker_id, StopCause.PEER)
        desk.turn()
        desk.train(*self.ids, round=self.round)
        assert desk.plan.generation > self.plans[-1].generation
        self.plans.append(desk.plan)
        return self

    def told(self, kind: TimelineKind) -> list[TimelineRow]:
        return [row for row in self.rows if row.kind is kind]

    def _step(self) -> None:
        plan, desk = self.plans[-1], self.desk
        batch = plan.global_batch
        step_s = self.step_s(batch) * max(0.5, self._rng.gauss(1.0, self.jitter))
        self.round, self.cursor = self.round + 1, self.cursor + batch
        values = {
            "step_s": step_s,
            "compute_s": 0.8 * step_s,
            "data_s": 0.0,
            "workers": float(len(self.ids)),
            "global_batch": float(batch),
            "micro_batch": batch / len(self.ids),
            **self.values,
        }
        if (noise_scale := self.noise_scale(self.cursor / (32 * STEPS))) is not None:
            values["noise_scale"] = noise_scale
        for worker_id in self.ids:
            self._say(worker_id, plan, (self._record(plan, values),) if worker_id == self.ids[0] else ())
        desk.turn(after_s=step_s)
        self.rows += desk.notes()
        if desk.plan.id != plan.id:
            self.plans.append(desk.plan)

    def _record(self, plan: Plan, values: dict[str, float]) -> RoundRecord:
        noise = values.get("noise_scale")
        bounds = None if noise is None or self.bounds is None else (noise * self.bounds[0], noise * self.bounds[1])
        return RoundRecord(
            lineage=1, round=self.round, generation=plan.generation, plan_id=plan.id, cursor=self.cursor,
            samples=plan.global_batch, time=1e9 + self.desk.now, values=values, noise_bounds=bounds,
        )  # fmt: skip

    def _say(self, worker_id: str, plan: Plan, records: tuple[RoundRecord, ...]) -> None:
        built = replace(build_info(), total_samples=32 * STEPS, num_train=self.epoch)
        self.desk.say(
            worker_id, Phase.COMPUTE, plan=plan, generation=plan.generation, lineage=1, round=self.round,
            cursor=self.cursor, build=built, records=records,
        )  # fmt: skip


def flat(batch: int) -> float:
    return 0.01 + 1e-6 * batch


def test_a_noisy_job_grows_and_tells_what_it_expected_and_what_it_found() -> None:
    job = NoisyJob(flat, lambda _: 2000.0).run(400)
    assert job.batches == [32, 64, 256, 512]  # a leap as soon as it is known that more samples cost next to nothing
    first, *_ = job.told(TimelineKind.BATCH)
    assert (first.actor, first.before) == ("goodput", {"global_batch": 32})
    assert first.after["global_batch"] == 64
    assert 1.3 < first.after["expected_gain"] < 2.0  # with one batch seen nobody knows what a sample costs
    assert first.after["error"] > 0.15
    _, second, *_ = job.told(TimelineKind.BATCH)
    assert second.after["expected_gain"] == pytest.approx(4 * 2064 / 2256, rel=0.1)
    assert second.after["error"] < first.after["error"]
    judged = job.told(TimelineKind.PROBATION)
    assert [row.after["is_kept"] for row in judged] == [True] * 3
    assert judged[0].after["gain"] == pytest.approx(2 * 2032 / 2064, rel=0.05)
    plan = job.plans[1]
    assert (plan.switch, plan.generation) == (Switch.AGREED, job.plans[0].generation)


def test_a_batch_that_was_kept_is_weighed_on_as_soon_as_enough_was_measured() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    rounds = []
    while len(job.batches) < 4:
        before = len(job.batches)
        job.run(1)
        rounds += [job.round] if len(job.batches) > before else []
    assert max(b - a for a, b in pairwise(rounds)) <= NUM_SETTLING + MIN_STEPS + 2  # and a turn to agree on each


def test_the_rate_follows_its_rule_and_rises_to_it_within_a_few_steps() -> None:
    job = NoisyJob(flat, lambda _: 2000.0).run(100)
    before, after = job.plans[0].lr, job.plans[1].lr
    ramp = after.ramp
    assert ramp is not None
    assert ramp.samples == 10 * 64
    total, begin = 32 * STEPS, ramp.begin
    assert after.decay is Decay.CONSTANT
    at_last = after.at(begin + 20 * 64, total, 64)
    assert at_last == pytest.approx(before.at(begin + 20 * 64, total, 32) * 2**0.5, rel=0.05)
    assert after.at(begin, total, 64) < at_last


def test_an_epoch_has_few_changes_however_long_it_is() -> None:
    def changes(epoch: int) -> int:
        rising = NoisyJob(lambda b: 0.004 + 1e-4 * b, lambda share: 60.0 * 2 ** (60 * share), epoch=epoch)
        return len(rising.run(800).batches) - 1

    assert changes(32 * STEPS) == MOST_AN_EPOCH
    assert changes(EPOCH) > MOST_AN_EPOCH


def test_noise_that_comes_and_goes_moves_a_batch_ever_more_rarely() -> None:
    def restless(share: float) -> float:
        return 2000.0 if int(share * 200) % 2 == 0 else 2.0

    job = NoisyJob(lambda b: 0.004 + 1e-4 * b, restless)
    turns, grew = [], True
    for _ in range(1500):
        before = job.plans[-1].global_batch
        job.run(1)
        if (now := job.plans[-1].global_batch) != before and (now > before) != grew:
            turns.append(job.round)
            grew = now > before
    rests = [b - a for a, b in pairwise(turns)]
    assert len(rests) >= 2
    assert all(rest >= REST_ROUNDS * 2**n for n, rest in enumerate(rests, start=1))


def test_after_a_batch_was_taken_back_none_is_tried_in_either_direction_for_a_while() -> None:
    def may(known: Adapting) -> tuple[bool, bool]:
        return may_change(known, is_growth=True), may_change(known, is_growth=False)

    grown = change(Adapting(), 0, is_growth=True)
    back = change(grown, 0, is_growth=None)
    assert (may(Adapting()), may(grown), may(back)) == ((True, True), (True, False), (False, False))
    assert may(replace(grown, num_rounds=REST_ROUNDS)) == (True, True)
    assert may(replace(back, num_rounds=2 * REST_ROUNDS - 1)) == (False, False)
    assert may(replace(back, num_rounds=2 * REST_ROUNDS)) == (True, True)


def test_a_batch_that_came_in_a_burst_of_other_work_is_tried_again_later() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    while job.batches == [32]:
        job.run(1)
    job.step_s = lambda batch: 4 * flat(batch)
    while len(job.batches) == 2:
        job.run(1)
    job.step_s = flat
    assert job.run(500).batches == [32, 64, 32]
    assert max(job.run(600).batches) >= 256


def test_a_batch_that_turns_out_slower_is_taken_back_and_not_tried_again() -> None:
    job = NoisyJob(lambda batch: 0.01 if batch <= 32 else 0.05, lambda _: 2000.0).run(600)
    assert job.batches[:3] == [32, 64, 32]
    judged = job.told(TimelineKind.PROBATION)
    assert not judged[0].after["is_kept"]
    assert judged[0].reason.endswith("; going back")
    back = job.told(TimelineKind.BATCH)[1]
    assert (back.before, back.after) == ({"global_batch": 64}, {"global_batch": 32, "noise_scale": 2000.0})
    assert len(job.batches) <= 7
    assert job.batches[-1] == 32


def test_a_batch_that_is_neither_better_nor_worse_is_judged_in_the_end() -> None:
    def even(batch: int) -> float:
        return 0.01 * (batch / 32) * (0.9 if batch > 32 else 1.0)

    job = NoisyJob(even, lambda _: 288.0, jitter=0.3)
    while job.batches == [32]:
        job.run(1)
    assert job.run(NUM_SETTLING + MAX_JUDGE_STEPS + 5).told(TimelineKind.PROBATION)


def test_a_short_burst_of_other_work_does_not_take_a_batch_back() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    while job.batches == [32]:
        job.run(1)
    job.step_s = lambda batch: 3 * flat(batch)
    job.run(NUM_SETTLING + JUDGE_STEPS + 1)
    job.step_s = flat
    job.run(100)
    assert job.told(TimelineKind.PROBATION)[0].after["is_kept"]


def test_another_plan_of_the_same_batch_and_group_leaves_its_trial_alone() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    while job.batches == [32]:
        job.run(1)
    job.desk.direction = replace(job.desk.direction, until=32 * STEPS // 2)
    job.run(60)
    assert job.plans[2].until == 32 * STEPS // 2
    assert job.told(TimelineKind.PROBATION)[0].after["is_kept"]


def test_a_batch_on_trial_is_taken_back_where_other_workers_cannot_tell_whether_it_pays() -> None:
    job = NoisyJob(lambda b: 0.004 + 1e-4 * b, lambda _: 80.0)
    while job.batches == [32]:
        job.run(1)
    job.run(5).regroup(1).run(NUM_SETTLING + 2)
    assert job.batches == [32, 64, 32]
    assert job.told(TimelineKind.PROBATION) == []
    back = job.told(TimelineKind.BATCH)[-1]
    assert (back.actor, back.before, back.after) == ("goodput", {"global_batch": 64}, {"global_batch": 32})
    assert "64 were on trial with 2 workers, and there is 1 now" in back.reason
    assert job.desk.state.adapting.refused == {}
    assert len(job.run(200).told(TimelineKind.BATCH)) > 2


def test_a_plan_names_the_batch_before_one_on_trial_until_that_is_judged() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    while not job.told(TimelineKind.PROBATION):
        job.run(1)
    first, *on_trial, judged = job.plans
    assert {(plan.global_batch, plan.judged_batch) for plan in on_trial} == {(64, 32)}
    assert (first.judged_batch, judged.global_batch, judged.judged_batch) == (None, 64, None)
    assert judged.lr == on_trial[-1].lr


def test_a_batch_on_trial_is_taken_back_where_its_measurement_went_with_its_controller() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    while job.batches == [32]:
        job.run(1)
    job.run(5)
    job.desk.state = replace(job.desk.state, adapting=Adapting())
    job.run(NUM_SETTLING + 2)
    assert job.batches == [32, 64, 32]
    assert job.plans[-1].judged_batch is None
    assert "64 were on trial, and what was measured went with the controller" in job.told(TimelineKind.BATCH)[-1].reason


def test_a_batch_on_trial_that_somebody_asks_for_is_on_trial_no_more() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    while job.batches == [32]:
        job.run(1)
    wish = RunSettings(n=1, lr=0.1, global_batch=64, actor="user", reason="as it is")
    job.desk.direction = replace(job.desk.direction, settings=wish)
    job.run(2)
    assert (job.plans[-1].global_batch, job.plans[-1].judged_batch) == (64, None)


def test_a_batch_on_trial_is_judged_by_another_group_of_as_many_workers() -> None:
    job = NoisyJob(flat, lambda _: 2000.0)
    while job.batches == [32]:
        job.run(1)
    job.run(5).regroup(2).run(NUM_SETTLING + JUDGE_STEPS - 1)
    assert job.told(TimelineKind.PROBATION) == []
    verdict = job.run(100).told(TimelineKind.PROBATION)[0]
    assert (verdict.before["global_batch"], verdict.after["global_batch"]) == (32, 64)
    assert verdict.after["is_kept"]


def test_what_was_measured_while_others_had_the_machine_does_not_make_larger_batches_look_cheap() -> None:
    def busy_at_first(batch: int) -> float:
        return 1e-3 * batch * (3.0 if batch == 32 else 1.0)

    job = NoisyJob(busy_at_first, lambda _: 60.0).run(300)
    assert job.batches == [32, 64]
    now = Layout(num_workers=2, num_nodes=1, global_batch=64, num_passes=1)
    assert model(job.desk.state.adapting).step_s(now).value == pytest.approx(busy_at_first(64), rel=0.05)


def test_steps_that_contradict_newer_ones_are_forgotten() -> None:
    def seen(batch: int, step_s: float, num_passes: int = 1) -> Observation:
        layout = Layout(num_workers=2, num_nodes=1, global_batch=batch, num_passes=num_passes)
        return Observation(layout=layout, pass_s=step_s, step_s=step_s, num_steps=40)

    now, slower, faster = seen(64, 0.1), seen(32, 0.2), seen(128, 0.05)
    assert current([now, slower, faster]) == [now]
    alike, split = seen(32, 0.105), seen(32, 0.2, num_passes=4)
    assert current([now, alike, split, seen(128, 0.2)]) == [now, alike, split, seen(128, 0.2)]


def test_noise_that_fades_makes_it_smaller_again() -> None:
    def fading(share: float) -> float:
        return 2000.0 if share < 0.3 else 5.0

    job = NoisyJob(lambda batch: 0.004 + 1e-4 * batch, fading).run(3000)
    assert max(job.batches) >= 128
    assert job.batches[-1] <= 64


def test_nothing_changes_where_noise_says_so_and_where_the_batch_is_fixed() -> None:
    quiet = NoisyJob(flat, lambda _: 0.5).run(300)
    assert quiet.batches == [32]
    told = "1.05 is the least that is worth a change."
    assert quiet.desk.state.adapting.why.endswith((told, "no other batch lies within its bounds."))
    assert NoisyJob(flat, lambda _: None).run(300).desk.state.adapting.why == NO_NOISE
    rough = NoisyJob(flat, lambda _: 32_000.0, bounds=None).run(300)
    assert (rough.batches, rough.desk.state.adapting.why) == ([32], ROUGH_NOISE)
    doubted = NoisyJob(flat, lambda _: 32_000.0, bounds=(1e-5, 1.0)).run(300)
    assert doubted.batches == [32]
    fixed = NoisyJob(flat, lambda _: 2000.0, adapt="fixed", max_global_size=None).run(300)
    assert fixed.batches == [32]


def test_a_batch_by_length_adapts_as_others_whatever_its_number_of_passes_and_their_sizes() -> None:
    def of(values: dict[str, float]) -> NoisyJob:
        job = NoisyJob(lambda batch: 0.004 + 1e-4 * batch, lambda _: 300.0)
        job.values = values
        return job.run(600)

    by_length = of({"useful_tokens": 0.9, "micro_batch": 3.0})
    assert by_length.batches == of({}).batches
    assert {layout.num_passes for layout in by_length.desk.state.adapting.memory} == {1}


def test_gradients_that_come_to_agree_leave_no_noise_of_before_to_grow_by() -> None:
    job = NoisyJob(flat, lambda share: 2000.0 if share < 5e-4 else 0.0)
    job.run(300)
    assert job.batches == [32]
    assert job.desk.state.adapting.noise_scale == 0.0


@pytest.mark.parametrize("jitter", [0.1, 0.3])
def test_it_does_not_flap_on_noise(jitter: float) -> None:
    job = NoisyJob(lambda batch: 0.004 + 1e-4 * batch, lambda _: 300.0, jitter=jitter).run(2000)
    assert len(job.batches) <= 8


def test_without_a_bound_a_batch_grows_no_larger_than_the_dataset_but_to_one_that_was_asked_for() -> None:
    def flat(_: int) -> float:
        return 0.05

    free = NoisyJob(flat, lambda _: 5000.0, epoch=400, max_global_size=None).run(1500)
    assert 128 <= max(free.batches) <= 400
    asked = NoisyJob(flat, lambda _: 5000.0, epoch=400).run(1500)
    assert max(asked.batches) == 512

"""What is foreseen of other sizes and batches, for any job and without a word of its owner."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.control.desk import Desk, build_info
from tests.control.uneven_job import UnevenJob
from workers.advisors.throughput import Layout
from workers.control import adapting
from workers.control.adapting import Adapting, Refusal, Steps
from workers.control.forecasting import FIRST_S, MIN_STEPS, REFRESH_S, forecast
from workers.control.sizing import Memory
from workers.measures import Forecast, Prediction
from workers.plan import Plan, PlanId
from workers.spec import parse_job_spec
from workers.status import Phase, RoundRecord

BATCH = 64


def step_s(workers: int, batch: int) -> float:
    return 2e-3 + 2e-4 * batch / workers + (0.0 if workers == 1 else 1e-3)


class TrainedJob:
    """A job of one batch whose steps take ``step_s``, told by rank 0, so many in turns in a round."""

    def __init__(
        self,
        num_workers: int,
        high: int = 4,
        steps_of_rounds: tuple[int, ...] = (1,),
        age_s: float = FIRST_S,
        **batch: object,
    ) -> None:
        self._steps_of_rounds = steps_of_rounds
        self.desk = Desk(high=high, batch={"global_size": BATCH, **batch}, steps=20_000)
        self.ids = self.desk.started(num_workers)
        self.desk.turn(age_s)
        self.round, self.cursor = 5, 5 * BATCH
        self._rng = random.Random(1)

    def train(self, num_rounds: int) -> Forecast | None:
        for _ in range(num_rounds):
            self._step(self.desk.plan)
        return self.desk.state.forecast

    def _step(self, plan: Plan) -> None:
        batch, workers = plan.global_batch, plan.num_members
        num_steps = self._steps_of_rounds[self.round % len(self._steps_of_rounds)]
        self.round, self.cursor = self.round + 1, self.cursor + num_steps * batch
        took_s = step_s(workers, batch) * self._rng.gauss(1.0, 0.02)
        values = {
            "step_s": num_steps * took_s,
            "compute_s": num_steps * (2e-3 + 2e-4 * batch / workers),
            "workers": float(workers),
            "global_batch": float(num_steps * batch),
            "micro_batch": batch / workers,
        }
        record = RoundRecord(
            lineage=1,
            round=self.round,
            generation=plan.generation,
            plan_id=plan.id,
            cursor=self.cursor,
            samples=num_steps * batch,
            time=float(self.round),
            values=values,
            num_passes=num_steps,
            num_steps=num_steps,
        )
        for worker_id in self.ids:
            self.desk.say(
                worker_id,
                Phase.COMPUTE,
                plan=plan,
                pending=None,
                generation=plan.generation,
                lineage=1,
                round=self.round,
                cursor=self.cursor,
                records=(record,),
            )
        self.desk.turn(0.01)


def by_size(forecast: Forecast | None) -> dict[int, Prediction]:
    assert forecast is not None
    return {each.num_workers: each for each in forecast.sizes}


def test_a_job_that_may_be_over_at_once_foresees_nothing_yet() -> None:
    job = TrainedJob(2, age_s=0.0)
    assert job.train(20) is None
    job.desk.turn(FIRST_S)
    assert job.train(1) is not None


def test_a_job_with_a_fixed_batch_tells_every_size_in_its_range_and_which_it_never_tried() -> None:
    job = TrainedJob(2)
    assert job.train(MIN_STEPS) is None  # the first steps of a group are not measured
    told = by_size(job.train(20))
    assert list(told) == [1, 2, 3, 4]
    here = told[2]
    assert here.measured == pytest.approx(BATCH / step_s(2, BATCH), rel=0.03)
    assert here.samples_per_s == pytest.approx(here.measured, rel=0.1)
    assert here.error < 0.1
    assert [(each.measured, each.num_steps) for size, each in told.items() if size != 2] == [(None, 0)] * 3
    assert told[4].error > told[3].error > 2 * here.error
    truth = BATCH / step_s(4, BATCH)
    assert abs(math.log(told[4].samples_per_s / truth)) < 2 * told[4].error


def test_rounds_of_several_steps_are_foreseen_and_sized_by_their_steps() -> None:
    job = TrainedJob(2, steps_of_rounds=(25, 15))
    here = by_size(job.train(30))[2]
    assert here.measured == pytest.approx(BATCH / step_s(2, BATCH), rel=0.03)
    assert here.samples_per_s == pytest.approx(here.measured, rel=0.1)
    layout = job.desk.state.adapting.layout
    assert layout is not None
    assert (layout.global_batch, layout.num_passes) == (BATCH, 1)
    assert len(job.desk.state.sizing.memory[2].samples_per_s) > 10


def test_batches_are_foreseen_as_far_as_goodput_may_go() -> None:
    fixed, adapting = TrainedJob(2).train(30), TrainedJob(2, adapt="goodput", max_global_size=300).train(30)
    assert fixed is not None
    assert adapting is not None
    assert [each.global_batch for each in fixed.batches] == [16, 32, 64, 128, 256]
    assert [each.global_batch for each in adapting.batches] == [64, 128, 256, 300]
    unbounded = TrainedJob(2, adapt="goodput").train(30)
    assert unbounded is not None
    assert [each.global_batch for each in unbounded.batches] == [64, 80]  # the whole dataset


def test_many_sizes_are_thinned_and_the_ends_and_the_present_one_kept() -> None:
    told = by_size(TrainedJob(3, high=64).train(30))
    assert len(told) <= 25
    assert {1, 3, 64} <= told.keys()


def test_a_forecast_is_made_anew_in_time_and_not_at_every_turn() -> None:
    job = TrainedJob(1)
    first = job.train(30)
    assert job.train(1) is first
    settled = job.train(60)
    assert by_size(settled)[1].num_steps == 64
    assert job.train(20) is settled
    job.desk.now += REFRESH_S
    assert job.train(1) is not settled


def test_a_turn_without_news_outlives_that_its_steps_were_forgotten() -> None:
    """Another scheme was kept, and before the next step is told the controller turns once more."""
    job = TrainedJob(2)
    job.train(MIN_STEPS + 5)
    known = job.desk.state.adapting
    assert known.layout is not None
    job.desk.state = replace(job.desk.state, adapting=adapting.forgotten(known))
    job.desk.turn(REFRESH_S)
    assert job.desk.state.forecast is not None


def test_what_is_foreseen_is_what_a_job_expects_of_more_workers_once_it_knows_more_than_one_size() -> None:
    job = TrainedJob(2)
    for worker_id in job.ids:
        job.desk.say(worker_id, Phase.COMPUTE, build=replace(build_info(), total_samples=10**9))
    job.train(2 * MIN_STEPS)
    job.desk.direction = replace(job.desk.direction, num_offered=4)
    job.desk.now += REFRESH_S
    job.train(10)
    assert "expected to be 2.00 times as fast as 2" in job.desk.state.sizing.why
    alone, known = Layout(num_workers=1, num_nodes=1, global_batch=BATCH, num_passes=1), job.desk.state.adapting
    times_s = ((step_s(1, BATCH), step_s(1, BATCH)),) * 64
    known = replace(known, memory={alone: Steps(times_s=times_s), **known.memory})
    job.desk.state = replace(job.desk.state, adapting=known, sizing=replace(job.desk.state.sizing, ask=None))
    job.desk.now += REFRESH_S
    told = by_size(job.train(10))
    gain = max(told[size].samples_per_s for size in (3, 4)) / told[2].samples_per_s
    assert f"expected by the model of its steps to be {gain:.2f} (" in job.desk.state.sizing.why
    sizing = job.desk.state.sizing
    forgotten = replace(sizing, ask=None, memory={**sizing.memory, 3: Memory()})
    job.desk.state = replace(job.desk.state, sizing=forgotten)
    job.desk.now += REFRESH_S
    job.train(10)
    # What is between two that the model tells is not asked of it: an old trial is made again.
    assert "3 workers are expected to be 1.50 times as fast as 2" in job.desk.state.sizing.why


class CutJob(UnevenJob):
    """Its first worker, which is the slow one, tells of steps: it computes its part in passes of 32 samples."""

    def recorded(self, record: RoundRecord, plan: Plan) -> RoundRecord:
        part = plan.parts["1.1"]
        values = {"global_batch": 128.0, "micro_batch": 32.0, "compute_s": self.costs["1.1"](part)}
        return replace(record, values={**record.values, **values}, num_passes=math.ceil(part / 32))


def test_steps_before_a_batch_was_shared_anew_tell_nothing_of_those_after() -> None:
    job = CutJob(lambda part: 0.03 * part, lambda part: 0.01 * part).run(90)
    assert job.parts == (32, 96)
    told = job.desk.state.forecast
    assert told is not None
    [smaller] = [each for each in told.batches if each.global_batch == 64]
    truth = 1 / 0.0075  # as many samples a second as ever: nothing of a step is fixed
    assert abs(math.log(smaller.samples_per_s / truth)) < 2 * smaller.error


def told_by(plan: PlanId, rounds: range, pass_s: float) -> list[RoundRecord]:
    values = {"step_s": pass_s, "compute_s": pass_s, "workers": 2.0, "global_batch": 64.0, "micro_batch": 32.0}
    record = RoundRecord(
        lineage=1, round=1, generation=1, plan_id=plan, cursor=0, samples=64, time=0.0, values=values, num_passes=1
    )
    return [replace(record, round=n) for n in rounds]


def test_other_parts_make_old_steps_nothing_also_where_their_plan_is_not_the_latest_any_more() -> None:
    as_it_was, shared, latest = PlanId(1, 1), PlanId(1, 2), PlanId(1, 3)
    known = adapting.observe(Adapting(), told_by(as_it_was, range(1, 40), 0.5), 1)
    refusal = Refusal(noise_scale=9.0, until=1000, place=known.place, rate=adapting.rate(known))
    known = replace(known, refused={128: refusal})
    known = adapting.observe(known, told_by(as_it_was, range(40, 50), 0.5), 1, shared)
    assert known.is_shared
    assert adapting.rate(known) is not None
    known = adapting.observe(known, told_by(latest, range(50, 90), 0.1), 1)
    assert not known.is_shared
    assert {step_s for steps in known.memory.values() for _, step_s in steps.times_s} == {0.1}
    assert known.refused == {128: replace(refusal, rate=None)}, "no verdict by steps with other parts"


def cut(num_workers: int, num_passes: int) -> Layout:
    return Layout(num_workers=num_workers, num_nodes=1, global_batch=128, num_passes=num_passes)


def steps_of(layout: Layout) -> Steps:
    pass_s = 5e-4 + 4e-4 * layout.samples_a_pass
    return Steps(times_s=((pass_s, layout.num_passes * pass_s + (0.0 if layout.num_workers == 1 else 2e-3)),) * 64)


def foreseen(*layouts: Layout, micro_size: int | str = "auto", settled: int | None = None) -> dict[int, Prediction]:
    """At 128 samples a step; the last of ``layouts`` is in force."""
    batch = {"global_size": 128, "micro_size": micro_size}
    spec = parse_job_spec(
        {
            "name": "a",
            "entrypoint": "workers.recipes.digits:build",
            "steps": 1000,
            "workers": {"min": 1, "max": 4},
            "batch": batch,
        }
    )
    known = Adapting(memory={layout: steps_of(layout) for layout in layouts}, layout=layouts[-1])
    return by_size(forecast(known, layouts[-1], spec, 128, settled))


def test_sizes_that_were_measured_are_foreseen_with_the_passes_that_they_had() -> None:
    for told in foreseen(cut(1, 4), cut(2, 2), cut(4, 1)).values():
        assert told.measured is None or told.samples_per_s == pytest.approx(told.measured, rel=0.02)


@pytest.mark.parametrize(
    ("layouts", "micro_size", "settled", "num_passes"),
    [
        ([cut(4, 1)], 32, None, 4),
        ([cut(2, 2), cut(4, 1)], "auto", 32, 4),
        ([cut(4, 2)], "auto", 24, 6),
        ([cut(4, 2)], "auto", None, 8),
        ([cut(4, 1)], "auto", 32, 1),
    ],
)
def test_one_worker_that_nobody_tried_is_foreseen_in_passes_as_were_asked_for_or_settled_on(
    layouts: list[Layout], micro_size: int | str, settled: int | None, num_passes: int
) -> None:
    known = Adapting(memory={layout: steps_of(layout) for layout in layouts}, layout=layouts[-1])
    told = foreseen(*layouts, micro_size=micro_size, settled=settled)[1]
    assert told.samples_per_s == 128 / adapting.model(known).step_s(cut(1, num_passes)).value

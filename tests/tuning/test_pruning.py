"""Pruners: one contract suite for all, and what each does besides."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from tests.tuning.simulated_sweep import Curve, SimulatedSweep
from tuning.asha import Asha, rungs_of
from tuning.hyperband import Hyperband
from tuning.median import Median
from tuning.pruning import NoPruner, pruner_of
from tuning.spec_parts import Mode, PrunerSpec
from tuning.trial import Report, Trial, TrialState
from tuning.verdicts import Continue, Pause, Promote, Pruner, Stop

SPECS: dict[str, PrunerSpec] = {
    "promoting": PrunerSpec.model_validate({"asha": {"min_samples": 100}}),
    "stopping": PrunerSpec.model_validate({"asha": {"min_samples": 100, "promote": False}}),
    "hyperband": PrunerSpec.model_validate({"hyperband": {"min_samples": 100}}),
    "median": PrunerSpec.model_validate({"median": {"min_samples": 300}}),
}
NAMES = [*SPECS, "none"]
every_pruner = pytest.mark.parametrize("name", NAMES)


def pruner(name: str, mode: Mode = "max") -> Pruner:
    return pruner_of(SPECS.get(name, "none"), mode, 2_700)


def rising(height: float) -> Curve:
    return lambda samples: height * (1 - math.exp(-samples / 500))


def shuffled(count: int, seed: int) -> list[float]:
    heights = [1.0 + n for n in range(count)]
    random.Random(seed).shuffle(heights)
    return heights


@every_pruner
@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_curves_that_never_cross_is_trained_to_its_end(name: str, seed: int) -> None:
    heights = shuffled(20, seed)
    sweep = SimulatedSweep(pruner(name), [rising(h) for h in heights], seed=seed).run()
    assert heights.index(20.0) in sweep.complete()


@every_pruner
def test_decisions_are_the_same_when_they_are_replayed_from_the_reports(name: str) -> None:
    sweep = SimulatedSweep(pruner(name), [rising(h) for h in shuffled(20, 1)]).run()
    fresh = pruner(name)
    assert [fresh.decide(trial, others) for trial, others, _ in sweep.log] == [d for *_, d in sweep.log]


@every_pruner
def test_less_is_better_where_the_mode_says_so(name: str) -> None:
    heights = shuffled(20, 2)
    most = SimulatedSweep(pruner(name, "max"), [rising(h) for h in heights]).run()
    least = SimulatedSweep(pruner(name, "min"), [rising(-h) for h in heights]).run()
    assert [type(d) for *_, d in most.log] == [type(d) for *_, d in least.log]
    assert [p.number for p in most.promotions] == [p.number for p in least.promotions]


@pytest.mark.parametrize("name", list(SPECS))
def test_a_trial_that_reports_no_number_is_stopped_at_once(name: str) -> None:
    curves = [rising(1.0), lambda samples: math.nan, rising(2.0), lambda samples: math.inf]
    sweep = SimulatedSweep(pruner(name), curves).run()
    assert {n: t.samples for n, t in sweep.trials.items() if t.state is TrialState.PRUNED and n in (1, 3)} == {
        1: 100,
        3: 100,
    }
    assert "reported nan after 100 samples" in str([d for *_, d in sweep.log])


@pytest.mark.parametrize("name", list(SPECS))
def test_pruning_trains_on_fewer_samples_than_none(name: str) -> None:
    curves = [rising(h) for h in shuffled(30, 3)]
    assert SimulatedSweep(pruner(name), curves).run().samples() < 0.7 * 30 * 2_700


@every_pruner
@pytest.mark.parametrize("num_trials", [1, 2, 3, 4])
def test_even_the_smallest_sweep_ends_with_a_trial_that_is_complete(name: str, num_trials: int) -> None:
    assert SimulatedSweep(pruner(name), [rising(1.0 + n) for n in range(num_trials)]).run().complete()


@pytest.mark.parametrize("num_trials", [2, 3, 4, 9])
@pytest.mark.parametrize("fails_at", [100, 200, 400, 2_700])
@every_pruner
def test_a_sweep_whose_best_trials_fail_ends_with_another_that_is_complete(
    name: str, fails_at: int, num_trials: int
) -> None:
    heights = shuffled(num_trials, 4)
    for num_failing in range(1, num_trials if name == "promoting" else 2):
        failing = {heights.index(float(num_trials - n)): fails_at for n in range(num_failing)}
        sweep = SimulatedSweep(pruner(name), [rising(h) for h in heights], failing=failing).run()
        assert sweep.complete()


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.PRUNED])
def test_where_the_best_of_a_rung_has_ended_the_next_one_goes_on_until_one_is_complete(state: TrialState) -> None:
    lost, rest = at(0, (100, 0.9), state=state), [waiting(n, (100, 0.9 - n / 10)) for n in range(1, 4)]
    assert PROMOTING.promote([lost, rest[2], rest[0]], can_start=True) is None
    found = PROMOTING.promote([lost, *rest], can_start=False)
    assert found is not None
    assert (found.number, found.rung) == (1, 100)
    complete = at(1, (100, 0.8), (2_700, 0.9), state=TrialState.COMPLETE)
    assert PROMOTING.promote([lost, complete, rest[1]], can_start=False) is None


def test_a_trial_that_failed_takes_no_place_of_others() -> None:
    failed = [at(n, (100, 0.9), state=TrialState.FAILED) for n in range(3)]
    others = [waiting(n, (100, 0.5)) for n in range(3, 5)]
    assert PROMOTING.decide(at(7, (100, 0.6)), [*failed, *others]) == Continue(reason="1 of 3 so far at 100 samples")
    assert STOPPING.decide(at(7, (100, 0.6)), failed) == Continue(reason="1 of 1 so far at 100 samples")
    assert PROMOTING.promote([*failed, *others, waiting(7, (100, 0.6))], can_start=True)


@every_pruner
def test_every_decision_tells_why(name: str) -> None:
    sweep = SimulatedSweep(pruner(name), [rising(h) for h in shuffled(9, 3)]).run()
    assert all(decision.reason for *_, decision in sweep.log)
    assert all(p.reason for p in sweep.promotions)


def at(number: int, *reports: tuple[int, float], state: TrialState = TrialState.RUNNING) -> Trial:
    return Trial(number=number, params={}, state=state, reports=tuple(Report(samples=s, value=v) for s, v in reports))


def waiting(number: int, *reports: tuple[int, float]) -> Trial:
    return at(number, *reports, state=TrialState.WAITING)


PROMOTING = Asha(mode="max", rungs=(100, 300, 900))
STOPPING = Asha(mode="max", rungs=(100, 300, 900), promotes=False)


def test_rungs_are_counted_in_samples_and_lie_before_the_end() -> None:
    assert rungs_of(100, 3, 2_700) == (100, 300, 900)
    assert rungs_of(None, 3, 27_000) == (1_000, 3_000, 9_000)
    assert rungs_of(5_000, 3, 5_000) == ()


def test_a_trial_waits_at_its_rung_until_enough_worse_ones_have_come() -> None:
    first = at(0, (100, 0.9))
    assert PROMOTING.decide(first, []) == Pause(rung=100, reason="1 of 1 so far at 100 samples")
    held = waiting(0, (100, 0.9))
    two = [held, waiting(1, (100, 0.5))]
    assert PROMOTING.promote(two, can_start=True) is None
    three = [*two, waiting(2, (100, 0.7))]
    assert PROMOTING.promote(three, can_start=True) == Promote(
        number=0, rung=100, reason="1 of 3 so far at 100 samples"
    )


def test_a_promoted_trial_is_not_promoted_twice_and_keeps_its_place() -> None:
    promoted, others = at(0, (100, 0.9)), [waiting(1, (100, 0.5)), waiting(2, (100, 0.7))]
    assert PROMOTING.promote([promoted, *others], can_start=True) is None
    assert PROMOTING.promote([waiting(0, (100, 0.9), (300, 0.95)), *others], can_start=True) is None


def test_the_highest_rung_is_served_first() -> None:
    low = [waiting(n, (100, 0.5 + n / 100)) for n in range(9)]
    high = [waiting(10 + n, (100, 0.9), (300, 0.9 + n / 100)) for n in range(3)]
    assert PROMOTING.promote(low + [at(t.number, (100, 0.9)) for t in high], can_start=True)
    found = PROMOTING.promote(low + high, can_start=True)
    assert found is not None
    assert (found.number, found.rung) == (12, 300)


def test_a_trial_that_is_among_the_best_when_it_comes_goes_on_without_waiting() -> None:
    others = [waiting(n, (100, 0.5)) for n in range(5)]
    assert PROMOTING.decide(at(7, (100, 0.6)), others) == Continue(reason="1 of 6 so far at 100 samples")
    assert isinstance(PROMOTING.decide(at(7, (100, 0.4)), others), Pause)


def test_nothing_is_decided_between_rungs() -> None:
    others = [waiting(n, (100, 0.9)) for n in range(5)]
    assert PROMOTING.decide(at(7, (100, 0.1), (200, 0.1)), others) == Continue(reason="between rungs")
    assert PROMOTING.decide(at(7, (50, 0.1)), others) == Continue(reason="between rungs")


def test_one_report_past_two_rungs_is_judged_at_the_higher_and_counts_at_both() -> None:
    sparse = at(7, (350, 0.1))
    assert STOPPING.decide(sparse, [at(1, (100, 0.5))]) == Continue(reason="1 of 1 so far at 300 samples")
    told = STOPPING.decide(at(8, (100, 0.05)), [sparse, at(1, (100, 0.5))])
    assert told == Stop(reason="3 of 3 so far at 100 samples")


def test_a_rung_remembers_what_a_trial_was_worth_there() -> None:
    fell = at(0, (100, 0.9), (200, 0.1))
    assert STOPPING.decide(at(1, (100, 0.5)), [fell]) == Stop(reason="2 of 2 so far at 100 samples")


def test_of_equals_the_earlier_trial_is_preferred() -> None:
    assert isinstance(STOPPING.decide(at(1, (100, 0.5)), [at(0, (100, 0.5))]), Stop)
    assert isinstance(STOPPING.decide(at(0, (100, 0.5)), [at(1, (100, 0.5))]), Continue)


def test_promotion_trains_less_than_stopping_and_finds_no_worse() -> None:
    def noisy(number: int, chance: random.Random) -> Curve:
        curve, own = rising(chance.gauss(0, 1)), random.Random(number)
        return lambda samples: curve(samples) + own.gauss(0, 0.1)

    samples, found = {"promoting": 0, "stopping": 0}, {"promoting": 0.0, "stopping": 0.0}
    for seed in range(30):
        for name in ("promoting", "stopping"):
            chance = random.Random(seed)
            sweep = SimulatedSweep(pruner(name), [noisy(n, chance) for n in range(32)], parallel=4, seed=seed).run()
            samples[name] += sweep.samples()
            found[name] += max(sweep.trials[n].reports[-1].value for n in sweep.complete())
    assert samples["promoting"] < 0.95 * samples["stopping"]
    assert found["promoting"] > found["stopping"] - 30 * 0.05


def test_brackets_of_hyperband_are_compared_among_themselves_only() -> None:
    band = Hyperband(mode="max", rungs=(100, 300, 900))
    sizes = Counter(band.bracket_of(n) for n in range(490))
    assert [round(sizes[b] / 49) for b in range(4)] == [6, 2, 1, 1]
    late = next(n for n in range(99) if band.bracket_of(n) == 1)
    early = [n for n in range(99) if band.bracket_of(n) == 0]
    best = [at(n, (100, 0.9)) for n in early]
    assert band.decide(at(late, (100, 0.1)), best) == Continue(reason="between rungs")
    assert isinstance(band.decide(at(early[0], (100, 0.1)), best[1:]), Stop)
    assert isinstance(band.decide(at(early[0], (100, 0.1)), [at(late, (100, 0.9))]), Continue)


def test_the_median_is_of_what_others_had_at_the_same_samples() -> None:
    median = Median(mode="max", min_samples=200, min_trials=3)
    others = [at(n, (200, 0.5 + n / 10), (900, 5.0)) for n in range(3)]
    assert isinstance(median.decide(at(7, (200, 0.55)), others), Stop)
    assert isinstance(median.decide(at(7, (200, 0.65)), others), Continue)
    assert isinstance(median.decide(at(7, (100, 0.9), (200, 0.55)), others), Continue)
    assert isinstance(median.decide(at(7, (100, 0.1)), others), Continue)
    assert isinstance(median.decide(at(7, (200, 0.1)), others[:2]), Continue)


def test_words_mean_the_pruners_with_their_defaults() -> None:
    assert pruner_of("asha", "max", 2_700) == Asha(mode="max", rungs=(100, 300, 900), reduction=3, promotes=True)
    assert pruner_of("none", "max", 2_700) == NoPruner()
    assert pruner_of("median", "min", 2_700) == Median(mode="min", min_samples=300, min_trials=5)
    assert pruner_of("hyperband", "max", 2_700) == Hyperband(mode="max", rungs=(100, 300, 900), reduction=3)

"""Who reads samples: the choice by itself, on rounds that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from workers.training.loader_choice import (
    INLINE,
    MAX_PROCESSES,
    MOST_ROUNDS,
    NUM_SETTLING,
    NUM_STRETCHES,
    PATIENCE,
    THREAD,
    LoaderChoice,
    Reading,
    RoundCost,
    Verdict,
    Way,
)

NUM_SAMPLES = 32
COMPUTE_S = 0.02
Wait = Callable[[Way], float]


def train(
    choice: LoaderChoice, waited_s: Wait, num_rounds: int, *, is_random: bool = False, cpu: float = 0.0
) -> list[Verdict]:
    """Rounds with some noise, in which each way of reading takes what ``waited_s`` says; what was settled on."""
    noise, verdicts = random.Random(0), []
    for number in range(num_rounds):
        if choice.is_probing and number % 5 == 4:
            reading = Reading(is_random=is_random, waited_s=waited_s(INLINE), compute_s=COMPUTE_S, cpu_share=cpu)
            choice.probed(reading)
        slower = noise.uniform(1.0, 1.08)
        cost = RoundCost(waited_s=slower * waited_s(choice.way), compute_s=slower * COMPUTE_S, num_samples=NUM_SAMPLES)
        verdict = choice.measured(cost, is_ready=True)
        verdicts += [verdict] if verdict is not None else []
    return verdicts


def test_cheap_reading_is_left_as_it_is_and_nothing_else_is_tried() -> None:
    choice, seen = LoaderChoice(1), set()

    def waited_s(way: Way) -> float:
        seen.add(way)
        return 0.05 * COMPUTE_S

    assert train(choice, waited_s, 3000) == []
    assert seen == {INLINE}


def test_waiting_is_taken_over_by_a_thread_and_what_is_left_of_it_by_processes() -> None:
    def waited_s(way: Way) -> float:
        left = 2.0 if way == INLINE else 1.0 if way == THREAD else 0.02
        return left * COMPUTE_S

    choice = LoaderChoice(1)
    first, second = train(choice, waited_s, 200)
    assert first.cost_s > 0
    assert (first.before, first.after) == (INLINE, THREAD)
    assert (second.before, second.after) == (THREAD, Way(num_processes=3))  # as many as read 2 rounds in 1, and one
    assert choice.kept == choice.way == Way(num_processes=3)
    assert "instead of" in second.reason


@pytest.mark.parametrize("is_random", [True, False])
def test_what_does_not_pay_is_refused_told_and_left_alone_for_long(is_random: bool) -> None:
    choice, tried = LoaderChoice(1), []

    def waited_s(way: Way) -> float:
        tried.append(way)
        return 0.97 * COMPUTE_S if way != INLINE else COMPUTE_S

    (verdict,) = train(choice, waited_s, PATIENCE // 2, is_random=is_random)
    assert verdict.before == verdict.after == choice.way == INLINE
    assert (THREAD in tried) is not is_random
    assert ("the data are random" in verdict.reason) is is_random
    assert verdict.reason.startswith("reading inline stays; ")
    num_tried = sum(way != INLINE for way in tried)
    train(choice, waited_s, PATIENCE // 4, is_random=is_random)
    assert sum(way != INLINE for way in tried) == num_tried
    train(choice, waited_s, PATIENCE, is_random=is_random)
    assert sum(way != INLINE for way in tried) > num_tried


def test_what_a_trial_took_are_the_seconds_by_which_its_rounds_were_longer_than_by_what_is_in_force_then() -> None:
    for waited in ({INLINE: 1.0, THREAD: 0.05}, {INLINE: 1.0, THREAD: 3.0}):
        choice, inline, thread = LoaderChoice(1), *(COMPUTE_S * (1.0 + s) for s in waited.values())
        choice._impossible["processes"] = "not here"
        rounds, verdict = [], None
        while verdict is None:
            if choice.is_probing:
                choice.probed(Reading(is_random=False, waited_s=COMPUTE_S, compute_s=COMPUTE_S, cpu_share=0.0))
            own_s = thread if choice.way == THREAD else inline
            rounds += [own_s] if choice.tried is not None else []
            cost = RoundCost(waited_s=own_s - COMPUTE_S, compute_s=COMPUTE_S, num_samples=NUM_SAMPLES)
            verdict = choice.measured(cost, is_ready=True)
        assert verdict.after == min(waited, key=lambda way: waited[way])
        assert verdict.cost_s == pytest.approx(sum(rounds) - len(rounds) * min(inline, thread))
        assert verdict.cost_s > inline


def test_processes_that_compute_are_no_more_than_there_are_processors_and_others_no_more_than_a_bound() -> None:
    for cpu, cpus, num in ((1.0, 1.0, 1), (1.0, 3.0, 3), (0.01, 1.0, MAX_PROCESSES)):
        choice = LoaderChoice(cpus)
        slow = {INLINE: 50.0, THREAD: 50.0}
        (verdict,) = train(choice, lambda way, slow=slow: slow.get(way, 5.0) * COMPUTE_S, 300, cpu=cpu)  # type: ignore[misc]
        assert verdict.after == Way(num_processes=num)
        assert verdict.compared is not None
        assert verdict.compared.before_s > 1.1 * verdict.compared.after_s
        assert verdict.compared.errors is not None


def test_reading_that_has_become_cheap_goes_back_inline_and_stays_there() -> None:
    choice = LoaderChoice(1)
    train(choice, lambda way: (2.0 if way == INLINE else 0.01) * COMPUTE_S, 200)
    assert choice.kept == THREAD
    verdicts = train(choice, lambda way: (0.0 if way == INLINE else 0.03) * COMPUTE_S, 3000)
    assert [(v.before, v.after) for v in verdicts] == [(THREAD, INLINE)]


def test_what_cannot_read_any_more_is_replaced_by_reading_inline_for_good() -> None:
    choice = LoaderChoice(1)
    waited_s: Wait = lambda way: (2.0 if way == INLINE else 1.0 if way == THREAD else 0.02) * COMPUTE_S  # noqa: E731
    train(choice, waited_s, 200)
    verdict = choice.cannot(choice.kept, "it was killed")
    assert verdict is not None
    assert (verdict.after, choice.way) == (INLINE, INLINE)
    assert verdict.reason == "3 loader processes cannot go on: it was killed"
    assert [v.after for v in train(choice, waited_s, 2000) if v.before != v.after] == [THREAD]


def test_rounds_that_are_short_of_their_own_are_not_compared_for_long() -> None:
    choice = LoaderChoice(1)
    cost = RoundCost(waited_s=1e-3, compute_s=1e-3, num_samples=NUM_SAMPLES)
    num_on_trial = 0
    for _ in range(500):
        if choice.is_probing:
            choice.probed(Reading(is_random=False, waited_s=1e-3, compute_s=1e-3, cpu_share=1.0))
        num_on_trial += choice.tried is not None
        choice.measured(cost, is_ready=True)
    assert NUM_STRETCHES * 2 * MOST_ROUNDS < num_on_trial <= 2 * NUM_STRETCHES * 2 * (MOST_ROUNDS + NUM_SETTLING)


def test_what_does_not_become_ready_is_given_up_after_a_while_and_not_tried_again() -> None:
    choice, seen = LoaderChoice(1), set()

    def waited_s(way: Way) -> float:
        seen.add(way)
        return (2.0 if way == INLINE else 3.0) * COMPUTE_S

    assert train(choice, waited_s, 5 * 6, is_random=True) == []
    assert choice.tried == Way(num_processes=3)
    slow = RoundCost(waited_s=50.0, compute_s=10.0, num_samples=NUM_SAMPLES)
    *early, verdict = [choice.measured(slow, is_ready=False) for _ in range(6)]
    assert early == [None] * 5
    assert verdict is not None
    assert "it was not ready within 300 s" in verdict.reason
    assert (choice.kept, choice.tried) == (INLINE, None)
    seen.clear()
    train(choice, waited_s, 3 * PATIENCE, is_random=True)
    assert seen == {INLINE}

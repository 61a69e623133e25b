"""Parts of a batch by speed: what they promise for any workers, and what is asked for when."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.advisors.cost_line import Cost
from workers.advisors.shares import (
    LEAST_KEPT,
    STRAGGLES,
    Bounds,
    Change,
    Keep,
    Standing,
    advise,
    share,
    slowest_s,
    stragglers,
)
from workers.errors import BatchSplitError

COSTS = st.builds(Cost, fixed_s=st.floats(0.0, 2.0), sample_s=st.floats(1e-5, 1.0))
BOUNDS = st.tuples(st.integers(0, 3), st.none() | st.integers(3, 60)).map(lambda b: Bounds(least=b[0], most=b[1]))
FREE = Bounds()


def costs(*sample_s: float, fixed_s: float = 0.0) -> tuple[Cost, ...]:
    return tuple(Cost(fixed_s=fixed_s, sample_s=one) for one in sample_s)


@given(st.integers(0, 400), st.lists(st.tuples(COSTS, BOUNDS), min_size=1, max_size=6))
def test_parts_sum_to_the_batch_within_their_bounds_or_are_refused(
    size: int, workers: list[tuple[Cost, Bounds]]
) -> None:
    lines, bounds = [cost for cost, _ in workers], [bound for _, bound in workers]
    room = sum(size if bound.most is None else min(bound.most, size) for bound in bounds)
    if not sum(bound.least for bound in bounds) <= size <= room:
        with pytest.raises(BatchSplitError, match="fewer workers"):
            share(size, lines, bounds)
        return
    parts = share(size, lines, bounds)
    assert sum(parts) == size
    assert all(b.least <= part <= (b.most or size) for part, b in zip(parts, bounds, strict=True))


@given(st.integers(1, 10), st.lists(COSTS, min_size=1, max_size=3))
def test_no_other_parts_are_faster(size: int, lines: list[Cost]) -> None:
    best = min(slowest_s(lines, parts) for parts in product(range(size + 1), repeat=len(lines)) if sum(parts) == size)
    assert slowest_s(lines, share(size, lines, [FREE] * len(lines))) <= best * (1 + 1e-9)


@given(st.integers(0, 400), st.floats(0.0, 1.0), st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=6))
def test_a_faster_worker_never_gets_less(size: int, fixed_s: float, sample_s: list[float]) -> None:
    parts = share(size, costs(*sample_s, fixed_s=fixed_s), [FREE] * len(sample_s))
    by_speed = [part for _, part in sorted(zip(sample_s, parts, strict=True), key=lambda pair: (pair[0], -pair[1]))]
    assert by_speed == sorted(parts, reverse=True)


@given(st.integers(0, 400), st.lists(COSTS, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_parts_go_with_the_workers_in_whatever_order_they_stand(size: int, lines: list[Cost], rng: object) -> None:
    shuffled = list(lines)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a Random

    def got(order: list[Cost]) -> list[tuple[float, float, int]]:
        parts = share(size, order, [FREE] * len(order))
        return sorted((cost.fixed_s, cost.sample_s, part) for cost, part in zip(order, parts, strict=True))

    assert got(lines) == got(shuffled)


@pytest.mark.parametrize(
    ("lines", "size", "expected"),
    [
        (costs(1.0, 3.0), 128, (96, 32)),
        (costs(1.0, 1.0, 1.0, 4.0), 130, (40, 40, 40, 10)),
        ((Cost(fixed_s=2.0, sample_s=1.0), Cost(fixed_s=0.0, sample_s=1.0)), 10, (4, 6)),
        ((Cost(fixed_s=99.0, sample_s=1.0), Cost(fixed_s=0.0, sample_s=1.0)), 10, (0, 10)),
    ],
)
def test_parts_as_one_finds_them_by_hand(lines: tuple[Cost, ...], size: int, expected: tuple[int, ...]) -> None:
    assert share(size, lines, [FREE] * len(lines)) == expected


def test_a_change_is_advised_with_its_figures_and_its_gain_counts_what_a_step_takes_besides() -> None:
    standing = Standing(names=("1.1", "1.2"), parts=(64, 64), costs=costs(0.01, 0.03), overhead_s=0.48)
    advice = advise(standing)
    assert isinstance(advice, Change)
    assert advice.parts == (96, 32)
    assert advice.expected_gain == pytest.approx((1.92 + 0.48) / (0.96 + 0.48))
    assert advice.reason == (
        "worker 1.2 takes 3.0 times as long a sample as the fastest; parts 96 and 32 instead of 64 and 64, "
        "expected 1.67 times as fast"
    )


@pytest.mark.parametrize(
    ("slower", "error", "overhead_s", "is_kept"),
    [(1.15, 0.0, 0.0, False), (1.10, 0.0, 0.0, True), (1.15, 0.02, 0.0, True), (1.15, 0.0, 2.0, True)],
)
def test_parts_change_only_for_a_gain_that_is_worth_it_and_sure(
    slower: float, error: float, overhead_s: float, is_kept: bool
) -> None:
    lines = tuple(Cost(fixed_s=0.0, sample_s=s, error=error) for s in (0.01, 0.01 * slower))
    advice = advise(Standing(names=("a", "b"), parts=(100, 100), costs=lines, overhead_s=overhead_s))
    assert isinstance(advice, Keep) is is_kept


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        ((10,) * 6, costs(0.001, *[1.0] * 5), (40, *[4] * 5)),
        ((20, 180), (Cost(fixed_s=95.0, sample_s=0.001), *costs(1.0)), (100, 100)),
        ((10, 90), costs(0.001, 1.0), (20, 80)),
        ((30, 170), costs(0.001, 1.0), (60, 140)),
    ],
)
def test_a_part_grows_no_further_than_can_be_told(
    before: tuple[int, ...], lines: tuple[Cost, ...], after: tuple[int, ...]
) -> None:
    advice = advise(Standing(names=tuple("abcdef"[: len(before)]), parts=before, costs=lines))
    assert isinstance(advice, Change)
    assert advice.parts == after


def test_who_waits_most_of_a_step_gets_more_to_see_what_that_costs_it() -> None:
    lines = (Cost(fixed_s=0.2, sample_s=0.01), Cost(fixed_s=0.0, sample_s=0.21))  # what is fixed takes one point alone
    advice = advise(Standing(names=("1.1", "1.2"), parts=(127, 1), costs=lines))
    assert isinstance(advice, Change)
    assert advice.parts == (126, 2)
    assert advice.reason == (
        "worker 1.2 waits for others 86% of a step; parts 126 and 2 instead of 127 and 1, expected 1.01 times as fast"
    )
    held = (*lines, Cost(fixed_s=3.0, sample_s=0.01))  # all wait for the third, and have what is theirs
    assert isinstance(advise(Standing(names=("1.1", "1.2", "1.3"), parts=(122, 5, 1), costs=held)), Keep)


def test_what_is_to_pay_by_itself_must_and_what_is_to_show_what_more_costs_may_fall_short_by_noise() -> None:
    alike = costs(0.01, 0.0113)
    paying = advise(Standing(names=("a", "b"), parts=(100, 100), costs=alike))
    assert isinstance(paying, Change)
    assert 1.05 <= paying.expected_gain <= 1.07
    assert paying.least_kept == LEAST_KEPT
    showing = advise(Standing(names=("a", "b"), parts=(127, 1), costs=costs(0.01, 0.2)))
    assert isinstance(showing, Change)
    assert showing.expected_gain - 0.05 <= showing.least_kept < 1.0


def test_a_batch_with_less_than_a_sample_for_each_is_left_alone() -> None:
    advice = advise(Standing(names=("a", "b", "c"), parts=(1, 1, 0), costs=costs(1.0, 2.0, 3.0)))
    assert isinstance(advice, Keep)


def test_only_who_holds_the_others_up_with_a_single_sample_is_named() -> None:
    slow = Cost(fixed_s=9.0, sample_s=0.1)
    names = ("1.1", "1.2", "1.3")
    found = stragglers(Standing(names=names, parts=(8, 8, 8), costs=(*costs(0.1, 0.1), slow)), STRAGGLES)
    assert found == {
        "1.3": "worker 1.3 cannot be balanced away: a step takes it 9.1 s with 1 sample, the others 1.2 s with all "
        "the rest"
    }
    able = Cost(fixed_s=0.0, sample_s=1.0)  # ten times as slow, but a sample at a time it keeps up
    assert not stragglers(Standing(names=names, parts=(8, 8, 8), costs=(*costs(0.1, 0.1), able)), STRAGGLES)


def test_two_that_are_slow_alike_are_both_named_the_slower_one_first() -> None:
    slow = [Cost(fixed_s=fixed_s, sample_s=0.1) for fixed_s in (9.0, 9.4)]
    found = stragglers(Standing(names=("1.1", "1.2", "1.3"), parts=(8, 8, 8), costs=(*costs(0.1), *slow)), STRAGGLES)
    assert list(found) == ["1.3", "1.2"]
    assert found["1.2"].endswith("a step takes it 9.1 s with 1 sample, the others 2.2 s with all the rest")

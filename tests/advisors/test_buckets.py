"""Buckets behind a backward pass: when the link ends, and what other buckets would be waited for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.advisors.buckets import BUCKET_S, Leaving, exposed_s, left_s

seconds = st.floats(0.0, 10.0)
cuts = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30).map(lambda parts: [p / sum(parts) for p in parts])


def left(shares: list[float], carried_s: float, backward_s: float) -> float:
    return Leaving(shares=shares, coded_s=carried_s).waited_s(backward_s)


def test_a_bucket_leaves_when_it_is_there_and_the_link_is_free() -> None:
    assert left([1.0], 3.0, 10.0) == 3.0  # all of it leaves at the end
    assert left([0.5, 0.5], 4.0, 10.0) == 2.0  # the first is gone at 7
    assert left([0.5, 0.5], 16.0, 10.0) == pytest.approx(11.0)  # from 5 on without a rest
    assert left([0.2, 0.8], 5.0, 10.0) == 4.0
    assert left_s([0.2, 0.8], [7.0, 1.0], 10.0) == 1.0  # the first, which is there at 2, is gone at 9


def test_of_two_hops_the_second_waits_for_the_bucket_after_it_but_for_what_goes_as_it_is() -> None:
    halves = Leaving(shares=[0.5, 0.5], coded_s=4.0, num_hops=2, dense_s=8.0)
    assert halves.waited_s(10.0) == 1.0 + 2.0
    assert (halves.least_s, halves.cores_s) == (3.0, 4 * BUCKET_S)
    mixed = Leaving(shares=[0.5, 0.5], coded_s=4.0, num_hops=2, num_dense=1, dense_s=8.0)
    assert mixed.waited_s(10.0) == 1.0 + 1.0  # the first is gone at 9
    assert (mixed.least_s, mixed.cores_s) == (2.0, 3 * BUCKET_S)
    quarters = Leaving(shares=[0.25] * 4, coded_s=4.0, num_hops=2)
    assert quarters.waited_s(10.0) == quarters.least_s == 0.5 + 2 * 0.5  # of the second hops all but two are gone
    assert quarters.waited_s(0.0) == 4.0
    kept = replace(quarters, relayed=False)
    assert kept.waited_s(10.0) == kept.least_s == 0.5 + 4 * 0.5  # every second hop is yet to come
    assert kept.waited_s(0.0) == 4.0


@given(shares=cuts, carried_s=seconds, backward_s=seconds)
def test_no_buckets_hide_the_last_one_nor_more_than_backward_takes(
    shares: list[float], carried_s: float, backward_s: float
) -> None:
    found = left(shares, carried_s, backward_s)
    assert max(shares[-1] * carried_s, carried_s - backward_s) - 1e-9 <= found <= carried_s + 1e-9
    halves = [share / 2 for share in shares for _ in range(2)]
    assert left(halves, carried_s, backward_s) <= found + 1e-9


@given(known_s=seconds, before=cuts, after=cuts, carried_s=seconds, backward_s=seconds)
def test_there_and_back_is_what_was_known(
    known_s: float, before: list[float], after: list[float], carried_s: float, backward_s: float
) -> None:
    one, other = (Leaving(shares=shares, coded_s=carried_s) for shares in (before, after))
    assert exposed_s(known_s, one, one, backward_s) == pytest.approx(max(known_s, before[-1] * carried_s))
    there_s = exposed_s(known_s, one, other, backward_s)
    assert there_s - max(0, len(after) - len(before)) * BUCKET_S >= after[-1] * carried_s - 1e-9


def ends_s(there_s: list[float], carried_s: list[float]) -> float:
    """When the last of these bytes has arrived: whatever begins a stretch without a rest, all behind it follows."""
    return max(there + sum(carried_s[n:]) for n, there in enumerate(there_s))


def waited_s(
    is_dense: tuple[bool, ...], shares: list[float], coded_s: float, codec_s: float, backward_s: float
) -> float:
    """Of one assignment, where as they are all gradients take a second."""
    there_s = [backward_s * sum(shares[: n + 1]) for n in range(len(shares))]
    carried_s = [share * (1.0 if dense else coded_s) for share, dense in zip(shares, is_dense, strict=True)]
    return (
        ends_s(there_s, carried_s)
        - backward_s
        + codec_s * sum(s for s, d in zip(shares, is_dense, strict=True) if not d)
    )


def of_prefixes(shares: list[float], coded_s: float, codec_s: float, backward_s: float) -> list[float]:
    mixed = [Leaving(shares=shares, coded_s=coded_s, num_dense=n, dense_s=1.0) for n in range(len(shares) + 1)]
    return [one.waited_s(backward_s) + codec_s * (1.0 - sum(shares[:n])) for n, one in enumerate(mixed)]


def of_all(shares: list[float], coded_s: float, codec_s: float, backward_s: float) -> list[float]:
    assigned = product((False, True), repeat=len(shares))
    return [waited_s(one, shares, coded_s, codec_s, backward_s) for one in assigned]


@given(num=st.integers(1, 8), coded_s=st.floats(0.0, 1.0), codec_s=st.floats(0.0, 1.0), backward_s=st.floats(0.0, 3.0))
def test_of_buckets_alike_no_assignment_is_better_than_the_best_that_is_dense_first(
    num: int, coded_s: float, codec_s: float, backward_s: float
) -> None:
    given_s = ([1.0 / num] * num, coded_s, codec_s, backward_s)
    assert min(of_prefixes(*given_s)) == pytest.approx(min(of_all(*given_s)), abs=1e-9)


@given(
    shares=cuts.filter(lambda shares: len(shares) <= 8),
    coded_s=st.floats(0.0, 1.0),
    codec_s=st.floats(0.0, 1.0),
    backward_s=st.floats(0.0, 3.0),
)
def test_of_any_buckets_dense_first_is_worse_than_the_best_by_less_than_one_of_them(
    shares: list[float], coded_s: float, codec_s: float, backward_s: float
) -> None:
    given_s = (shares, coded_s, codec_s, backward_s)
    best_s = min(of_all(*given_s))
    assert best_s - 1e-9 <= min(of_prefixes(*given_s)) <= best_s + max(shares) * (1.0 - coded_s + codec_s) + 1e-9

"""Buckets behind a backward pass: when the link ends, and what other buckets would be waited for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.advisors.buckets import BUCKET_S, exposed_s, left_s

seconds = st.floats(0.0, 10.0)
cuts = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30).map(lambda parts: [p / sum(parts) for p in parts])


def test_a_bucket_leaves_when_it_is_there_and_the_link_is_free() -> None:
    assert left_s([1.0], 3.0, 10.0) == 3.0  # all of it leaves at the end
    assert left_s([0.5, 0.5], 4.0, 10.0) == 2.0  # the first is gone at 7
    assert left_s([0.5, 0.5], 16.0, 10.0) == pytest.approx(11.0)  # from 5 on without a rest
    assert left_s([0.2, 0.8], 5.0, 10.0) == 4.0


@given(shares=cuts, carried_s=seconds, backward_s=seconds)
def test_no_buckets_hide_the_last_one_nor_more_than_backward_takes(
    shares: list[float], carried_s: float, backward_s: float
) -> None:
    found = left_s(shares, carried_s, backward_s)
    assert max(shares[-1] * carried_s, carried_s - backward_s) - 1e-9 <= found <= carried_s + 1e-9
    halves = [share / 2 for share in shares for _ in range(2)]
    assert left_s(halves, carried_s, backward_s) <= found + 1e-9


@given(known_s=seconds, before=cuts, after=cuts, carried_s=seconds, backward_s=seconds)
def test_there_and_back_is_what_was_known(
    known_s: float, before: list[float], after: list[float], carried_s: float, backward_s: float
) -> None:
    assert exposed_s(known_s, before, before, carried_s, backward_s) == pytest.approx(
        max(known_s, before[-1] * carried_s)
    )
    there_s = exposed_s(known_s, before, after, carried_s, backward_s)
    assert there_s - max(0, len(after) - len(before)) * BUCKET_S >= after[-1] * carried_s - 1e-9

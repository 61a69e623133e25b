"""Fewer points, the same picture."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.downsample import downsample
from service.records import Point

KEYS = ("a", "b", "c")
VALUES = st.dictionaries(st.sampled_from(KEYS), st.floats(-1e6, 1e6), max_size=3)


@given(values=st.lists(VALUES, max_size=120), max_points=st.integers(2, 50), num_keys=st.integers(0, 3))
def test_what_stays_is_bounded_in_order_and_has_both_ends(
    values: list[dict[str, float]], max_points: int, num_keys: int
) -> None:
    points = [Point(step, step, float(step), value, 0) for step, value in enumerate(values)]
    kept = downsample(points, KEYS[:num_keys], max_points)
    assert len(kept) <= max_points
    steps = [point.step for point in kept]
    assert steps == sorted(set(steps))
    told = [point for point in points if not point.values.keys().isdisjoint(KEYS[:num_keys])]
    if len(points) <= max_points:
        assert kept == points
    elif told:
        assert (kept[0], kept[-1]) == (told[0], told[-1])


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), max_points=st.integers(4, 40))
def test_the_peak_and_the_dip_of_a_series_stay(values: list[float], max_points: int) -> None:
    points = [Point(step, step, float(step), {"a": value}, 0) for step, value in enumerate(values)]
    kept = [point.values["a"] for point in downsample(points, ("a",), max_points)]
    assert max(kept) == max(values)
    assert min(kept) == min(values)


def test_one_outlier_in_a_hundred_thousand_is_seen() -> None:
    points = [Point(n, n, float(n), {"a": 1.0, "b": 9.0 if n == 54_321 else 1.0}, 0) for n in range(100_000)]
    kept = downsample(points, ("a", "b"), 500)
    assert len(kept) > 200
    assert 54_321 in [point.step for point in kept]

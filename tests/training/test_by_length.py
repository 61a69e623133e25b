"""A batch cut and dealt by length: each sample once, within bounds, with little padding and even shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from workers.training.bounds import Bounds, padded
from workers.training.by_length import PASS_SHARE, deal_by_length

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=200)
WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]), min_size=1, max_size=5).filter(any)


def log_normal(num_samples: int, sigma: float, seed: int) -> NDArray[np.int64]:
    drawn = np.random.Generator(np.random.PCG64(seed)).lognormal(4.5, sigma, num_samples)
    return np.maximum(1, drawn).astype(np.int64)


def padded_by_rank(lengths_N: NDArray[np.int64], dealt: list[list[NDArray[np.int64]]]) -> list[int]:
    return [sum(padded(lengths_N[piece]) for piece in own) for own in dealt]


@given(lengths=LENGTHS, weights=WEIGHTS, room=st.integers(0, 2000) | st.none(), most=st.integers(1, 40) | st.none())
@example(lengths=[5] * 30, weights=[1.0], room=15, most=None)
def test_every_sample_is_in_one_micro_batch_within_the_bounds_and_ranks_without_weight_have_none(
    lengths: list[int], weights: list[float], room: int | None, most: int | None
) -> None:
    lengths_N = np.array(lengths)
    max_tokens = None if room is None else max(lengths) + room
    dealt = deal_by_length(lengths_N, weights, Bounds(max_tokens=max_tokens, max_samples=most))
    pieces = [piece for own in dealt for piece in own]
    assert sorted(np.concatenate(pieces).tolist()) == list(range(len(lengths)))
    assert all(padded(lengths_N[piece]) <= (max_tokens or math.inf) for piece in pieces)
    assert all(0 < len(piece) <= (most or math.inf) for piece in pieces)
    assert all(not own for own, weight in zip(dealt, weights, strict=True) if weight == 0)


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=64))
def test_passes_and_padding_cost_no_more_than_cutting_wherever_lengths_have_halved_or_grown_by_a_ratio(
    lengths: list[int],
) -> None:
    lengths_N = np.array(lengths)
    (own,) = deal_by_length(lengths_N, [1.0], Bounds())
    pass_cost = float(lengths_N.sum()) * PASS_SHARE
    cost = sum(padded(lengths_N[piece]) + pass_cost for piece in own)
    for ratio in (1.05, 1.1, 1.2, 1.5, 2.0):
        num_classes = math.floor(math.log(max(lengths) / min(lengths), ratio)) + 1
        assert cost <= ratio * lengths_N.sum() + pass_cost * num_classes + 1e-6


@given(lengths=LENGTHS, num_ranks=st.integers(1, 6))
def test_equal_ranks_are_done_within_one_micro_batch_of_each_other_or_of_the_even_share(
    lengths: list[int], num_ranks: int
) -> None:
    lengths_N = np.array(lengths)
    dealt = deal_by_length(lengths_N, [1.0] * num_ranks, Bounds())
    pass_cost = PASS_SHARE * float(lengths_N.sum()) / num_ranks
    costs = [[padded(lengths_N[piece]) + pass_cost for piece in own] for own in dealt]
    loads, largest = [sum(own) for own in costs], max(max(own) for own in costs if own)
    assert max(loads) <= sum(loads) / num_ranks + largest + 1e-6


@pytest.mark.parametrize("num_samples", [16, 64, 512])
@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0], [3.0, 1.0], [1.0, 2.0, 1.0]])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_log_normal_lengths_waste_little_and_shares_follow_the_weights(
    num_samples: int, weights: list[float], sigma: float
) -> None:
    useful, uneven = [], []
    for seed in range(20):
        lengths_N = log_normal(num_samples, sigma, seed)
        max_tokens = max(2048, int(lengths_N.max()))
        by_rank = padded_by_rank(lengths_N, deal_by_length(lengths_N, weights, Bounds(max_tokens=max_tokens)))
        useful.append(lengths_N.sum() / sum(by_rank))
        done = np.array(by_rank) / weights
        uneven.append(done.max() / (sum(by_rank) / sum(weights)))
    assert np.mean(useful) >= 0.9
    assert np.mean(uneven) <= (1.05 if num_samples == 16 else 1.02)


@pytest.mark.parametrize("weights", [[1.0] * 2, [1.0] * 5, [1.0, 0.0, 3.0], [1.0] * 16])
def test_samples_of_one_length_are_shared_as_evenly_as_they_can_be(weights: list[float]) -> None:
    dealt = deal_by_length(np.full(70, 7), weights, Bounds())
    for own, weight in zip(dealt, weights, strict=True):
        assert abs(sum(map(len, own)) - 70 * weight / sum(weights)) <= 1


def test_a_long_batch_is_divided_in_the_same_way_every_time() -> None:
    lengths_N = log_normal(4096, 1.0, 0)
    one, other = (deal_by_length(lengths_N.copy(), [1.0] * 3, Bounds(max_tokens=8192)) for _ in range(2))
    assert [[p.tolist() for p in own] for own in one] == [[p.tolist() for p in own] for own in other]
    assert max(map(len, one)) < 60

"""One rank's part of batches dealt by length, and what it draws of it after a lack of memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.training.test_data import made_plan
from workers.training.bounds import Bounds
from workers.training.dealer import ByLength, Dealer
from workers.training.length_sources import ByIndex
from workers.training.lengths import Lengths
from workers.training.micro_batches import InOrder, MicroBatch
from workers.training.pass_tokens import PassTokens
from workers.training.token_tuning import TokenTuning

LENGTHS = [*range(1, 40), 90, 70, 70, 55]
BATCHES = [np.arange(0, 20), np.arange(20, 43)]
WEIGHTS = [1.0, 2.0, 1.0]


def tuning(limit: int | None) -> TokenTuning:
    """Where memory has run out at twice the ``limit``."""
    tokens = PassTokens("padded tokens")
    if limit is not None:
        tokens.halve(2 * limit)
    return TokenTuning(tokens, torch.device("cpu"))


def dealt(rank: int, micro: TokenTuning, told: list[int] = LENGTHS) -> ByLength:
    lengths = Lengths(len(told), ByIndex(told, lambda data, index: data[index], "train_data"), None)
    dealer = Dealer(lengths=lengths, bounds=Bounds(max_tokens=200), micro=micro)
    return dealer.deal(made_plan(WEIGHTS, 20), rank, BATCHES, lambda: None)


def dealt_at_random(rank: int, micro: TokenTuning) -> ByLength:
    lengths = Lengths(len(LENGTHS), ByIndex(LENGTHS, lambda data, index: data[index], "train_data"), None)
    dealer = Dealer(lengths=lengths, bounds=Bounds(max_tokens=200), micro=micro)
    return dealer.deal_at_random(made_plan(WEIGHTS, 20), rank, np.arange(len(LENGTHS)), lambda: None)


def all_of(draws: list[ByLength]) -> list[MicroBatch]:
    return [micro for draw in draws for micro in draw.micro_batches()]


@pytest.mark.parametrize("limit", [None, 64])
@pytest.mark.parametrize("deal", [dealt, dealt_at_random])
def test_ranks_draw_every_sample_once_and_no_two_micro_batches_begin_at_one_position(
    deal: Callable[[int, TokenTuning], ByLength], limit: int | None
) -> None:
    draws = [deal(rank, tuning(limit)) for rank in range(len(WEIGHTS))]
    drawn = all_of(draws)
    assert sorted(i for micro in drawn for i in micro.indexes) == list(range(len(LENGTHS)))
    assert len({micro.position for micro in drawn}) == len(drawn)
    assert all(micro.position in micro.indexes for micro in drawn)  # these batches are the dataset in its order
    assert len({draw.checksum for draw in draws}) == 1
    for micro in drawn:
        own = [LENGTHS[i] for i in micro.indexes]
        assert (micro.tokens, micro.padded_tokens) == (sum(own), len(own) * max(own))
        assert micro.cost == (micro.padded_tokens if len(own) > 1 else 1)
        assert len(own) == 1 or micro.padded_tokens <= (limit or 200)


@pytest.mark.parametrize("limit", [None, 180, 100])
def test_micro_batches_at_random_hang_on_no_lengths_where_memory_is_short_either(limit: int | None) -> None:
    for rank in range(len(WEIGHTS)):
        *whole, last = [len(micro.indexes) for micro in dealt_at_random(rank, tuning(limit)).micro_batches()]
        assert len({*whole}) == 1
        assert last <= whole[0]


def test_a_checksum_tells_other_lengths_and_another_order_of_them() -> None:
    told = [LENGTHS, [*LENGTHS[:-1], 56], [LENGTHS[1], LENGTHS[0], *LENGTHS[2:]]]
    assert len({dealt(0, tuning(None), lengths).checksum for lengths in told}) == 3


@pytest.mark.parametrize("limit", [None, 64])
def test_what_is_left_after_some_samples_is_drawn_in_the_same_order(limit: int | None) -> None:
    micro = tuning(limit)
    in_order = InOrder(begin=5, end=31, most=8, micro=micro, indexes=lambda begin, end: list(range(begin, end)))
    for draw in (dealt(1, micro), dealt_at_random(1, micro), in_order):
        whole = [i for batch in draw.micro_batches() for i in batch.indexes]
        assert len(whole) == draw.num_samples
        for skip in range(len(whole) + 1):
            assert list(itertools.chain(*(batch.indexes for batch in draw.micro_batches(skip)))) == whole[skip:]

"""An exchange over racks of any size: what the contract of all schemes asks, and who owes what."""

from __future__ import annotations

import pytest
import torch

from tests.training.test_schemes import MOST_ERROR, NUM_TAIL, Rank, ranks
from workers.exchange_options import used_over
from workers.plan import Exchange
from workers.training.exchange.codecs import Exact, Int8
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.hierarchical import Hierarchical
from workers.training.exchange.racks import seating
from workers.training.exchange.registry import scheme_for, scheme_over_racks
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Convoy, Dense
from workers.training.exchange.shards import MOST_VALUES
from workers.training.exchange.sparse import Sparse, sparse_sums

LAYOUTS = [
    (0, 1, 1, 1),
    (0, 0, 1, 1),
    (1, 0, 0, 1),
    (0, 0, 1, 1, 1),
    (0, 1, 1, 2),
    (0, 0, 1, 1, 2, 2),
    (0, 0, 0, 1, 1, 1),
]


@pytest.mark.parametrize("racks", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *("none across none", "bf16 across bf16", "none across int4", "int4 across int8"),
        *("two_four across int8", "topk across int4"),
    ],
)
def test_racks_of_any_size_hold_the_same_sum_and_lose_nothing_for_good(name: str, racks: tuple[int, ...]) -> None:
    def work(rank: Rank) -> tuple[list[torch.Tensor], torch.Tensor]:
        rank.take(name, racks)
        assert isinstance(rank.scheme, Hierarchical)
        rounds = []
        for round in range(8):
            rounds.append(rank.exchange(round))
            rank.residual.commit()
        rank.take("none")
        rounds.append(rank.exchange(8))
        return rounds, torch.stack([rank.truth(round) for round in range(9)])

    (first, truths), *others = ranks(len(racks), 3001, work)
    for rounds, _ in others:
        assert all(torch.equal(mine, its) for mine, its in zip(rounds, first, strict=True))
    size = len(racks)
    for flat in first:
        assert flat[-NUM_TAIL:].tolist() == [float(size * i + sum(range(size))) for i in range(NUM_TAIL)]
    sums = torch.stack([flat[:-NUM_TAIL].double() for flat in first])
    assert _relative(sums[0] - truths[0], truths[0]) <= 1.5 * sum(MOST_ERROR[n] for n in name.split(" across "))
    if "bf16" not in name:  # its rounding is not kept
        torch.testing.assert_close(sums.sum(0), truths.sum(0), atol=5e-5, rtol=0.0)


@pytest.mark.parametrize("racks", [(0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2)], ids=str)
def test_a_bucket_of_many_pieces_arrives_and_keeps_what_each_left_out(racks: tuple[int, ...]) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = rank.take("int8 across int4", racks).exchange(0)
        rank.residual.commit()
        rest = rank.take("none").exchange(1)[:-NUM_TAIL].double()
        return first, first[:-NUM_TAIL].double() + rest, rank.truth(0) + rank.truth(1)

    (first, *_), *others = found = ranks(len(racks), 4 * MOST_VALUES + 1, work)
    assert all(torch.equal(other, first) for other, _, _ in others)
    size = len(racks)
    assert first[-NUM_TAIL:].tolist() == [float(size * i + sum(range(size))) for i in range(NUM_TAIL)]
    for _, sums, truth in found:
        torch.testing.assert_close(sums, truth, atol=2e-5, rtol=0.0)


def _relative(error: torch.Tensor, of: torch.Tensor) -> float:
    return float(error.square().mean().sqrt() / of.square().mean().sqrt())


def test_fp64_stays_exact_where_nothing_rounds() -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
        return rank.take("none across none", (0, 0, 1, 1)).exchange(0)[:-NUM_TAIL], rank.truth(0)

    for sums, truth in ranks(4, 100, work, torch.float64):
        torch.testing.assert_close(sums, truth, atol=1e-14, rtol=0.0)


def test_one_level_is_no_hierarchy() -> None:
    one, each = (scheme_over_racks("bf16", "int4", racks, 0, Residual()) for racks in ((0, 0, 0), (0, 1, 2)))
    assert isinstance(one, Compressed)
    assert isinstance(each, Compressed)
    assert (one.name, each.name) == ("bf16", "int4")
    assert isinstance(scheme_over_racks("none", "int4", (0,), 0, Residual()), Dense)


@pytest.mark.parametrize("name", ["topk across int4", "two_four across none", "none across fp16", "int4 across int4"])
@pytest.mark.parametrize("racks", [*LAYOUTS, (0, 0, 0), (0, 1, 2), (0, 1), (0,)], ids=str)
def test_what_runs_among_racks_is_what_is_told_of_it(name: str, racks: tuple[int, ...]) -> None:
    """A whole plan's exchange, by the name that pages have for it."""
    scheme = scheme_for(Exchange.named(name, "so"), racks, 0, Residual())
    assert used_over(name, racks) == scheme.name


def test_what_is_largest_goes_to_a_shard_s_owner_in_few_bytes_and_sums_of_it_never_in_more_than_all() -> None:
    fp32 = 4 * MOST_VALUES
    assert 80 * Sparse(0.01, Int8()).num_bytes(MOST_VALUES) < fp32
    assert sparse_sums(0.01, 4, Int8()).num_bytes(MOST_VALUES) < fp32 / 20
    assert isinstance(sparse_sums(0.1, 8, Int8()), Int8)
    assert isinstance(sparse_sums(0.5, 2, Exact()), Exact)


def test_every_shard_has_one_owner_a_rack() -> None:
    seats = [seating((0, 1, 0, 1, 1), rank) for rank in range(5)]
    assert [seat.shard for seat in seats] == [0, 0, 1, 1, None]
    assert [seat.peers for seat in seats] == [(0, 1), (0, 1), (2, 3), (2, 3), ()]
    assert seats[4].owners == (1, 3)
    assert seats[4].mates == (1, 3, 4)


class Counted:
    """A bucket of so many hops."""

    def __init__(self, name: str, num_hops: int, log: list[str]) -> None:
        self.name, self.num_left, self.log = name, num_hops, log

    def forward(self) -> bool:
        self.num_left -= 1
        self.log.append(f"{self.name}{self.num_left}")
        return self.num_left > 0

    def wait(self) -> None:
        self.log.append(f"{self.name} has come")


def test_one_bucket_s_slow_hop_runs_while_another_s_fast_one_does() -> None:
    log: list[str] = []
    Convoy([Counted("a", 3, log), Counted("b", 3, log), Counted("c", 1, log)]).wait()
    assert log == ["a2", "b2", "a1", "c0", "b1", "a0", "b0", "a has come", "b has come", "c has come"]

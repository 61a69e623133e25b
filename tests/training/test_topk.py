"""The largest gradients: how they are found, and where they arrive."""

from __future__ import annotations

from math import ceil

import pytest
import torch

from tests.training.test_schemes import NUM_TAIL, Rank, ranks
from workers.training.exchange.largest import largest
from workers.training.exchange.registry import scheme_named

NUMEL, WANTED, MOST = 200_003, 2000, 3000


def normal(numel: int = NUMEL) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("numel", [1, 5, 5000, NUMEL])
def test_about_as_many_as_wanted_are_chosen_and_none_of_the_others_is_larger(numel: int) -> None:
    values, wanted = normal(numel), max(1, numel // 100)
    chosen = largest(values, wanted, 2 * wanted)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert 0.8 * wanted <= chosen.numel() <= 1.2 * wanted
    rest = torch.ones(numel, dtype=torch.bool).index_fill_(0, chosen, False)
    assert values[chosen].abs().min() >= values[rest].abs().max() if rest.any() else True


def test_a_column_with_all_large_values_is_not_all_that_a_sample_sees() -> None:
    values = torch.full((2000, 100), 0.01)
    values[:, 0] = normal(2000)  # a sample of every hundredth would see nothing else
    chosen = largest(values.view(-1), 1000, 1500)
    assert 600 <= chosen.numel() <= 1500
    assert set((chosen % 100).tolist()) == {0}


@pytest.mark.parametrize(("side", "at"), [(3, (0, 0)), (3, (1, 1)), (5, (0, 4))])
def test_a_place_of_a_kernel_that_is_larger_than_others_is_not_all_that_a_sample_sees(
    side: int, at: tuple[int, int]
) -> None:
    kernels = normal(64 * 64 * side * side).view(64, 64, side, side)
    kernels[:, :, at[0], at[1]] *= 3.3
    wanted = kernels.numel() // 100
    assert 0.6 * wanted <= largest(kernels.view(-1), wanted, 2 * wanted).numel() <= 1.5 * wanted


def test_of_many_equal_values_as_many_are_chosen_as_there_is_room_for() -> None:
    chosen = largest(torch.ones(NUMEL), WANTED, MOST).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == MOST
    few = torch.zeros(NUMEL)
    few[10:20] = -1.0
    assert largest(few, WANTED, MOST).tolist() == [*range(10, 20)]
    assert largest(torch.zeros(NUMEL), WANTED, MOST).numel() == 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_chosen_first(poison: float) -> None:
    values = torch.ones(NUMEL)
    values[NUMEL - 2] = poison
    assert NUMEL - 2 in largest(values, WANTED, MOST).tolist()
    assert largest(torch.full((NUMEL,), poison), WANTED, MOST).numel() == MOST


def test_values_arrive_where_they_were_taken_from_also_in_a_long_bucket() -> None:
    values = normal()

    def work(rank: Rank) -> torch.Tensor:
        scheme = scheme_named("topk", rank.residual, (("quantise", "none"),))
        flat = torch.cat((values, torch.zeros(NUM_TAIL)))
        under_way = scheme.start(0, flat, NUMEL, rank.world)
        assert under_way is not None
        under_way.wait()
        rank.residual.commit()
        left = torch.zeros(NUMEL)
        rank.residual.add_to(0, left)
        assert torch.equal(flat[:NUMEL] / 2 + left, values)
        return flat[:NUMEL]

    for sums in ranks(2, NUMEL, work):
        assert torch.equal(sums.nonzero().view(-1), largest(values, NUMEL // 100 + 1, MOST))


def test_where_an_all_reduce_is_less_nothing_is_left_out() -> None:
    def work(rank: Rank) -> torch.Tensor:
        scheme = scheme_named("topk", rank.residual, (("fraction", 0.5), ("quantise", "none")))
        flat = torch.cat((rank.gradients(0), torch.zeros(NUM_TAIL)))
        under_way = scheme.start(0, flat, rank.numel, rank.world)
        assert under_way is not None
        under_way.wait()
        return flat[: rank.numel].double() - rank.truth(0)

    for error in ranks(3, 10_007, work):
        assert error.abs().max() < 1e-5


def velocities(rank: Rank, num_rounds: int, momentum: float, others: int) -> torch.Tensor:
    """The sum over so many ranks of what SGD would have as momentum after some rounds."""
    sums = torch.zeros(rank.numel, dtype=torch.float64)
    for round in range(num_rounds):
        sums = momentum * sums + sum(rank.gradients(round, other).double() for other in range(others))
    return sums


@pytest.mark.parametrize("size", [1, 3])
def test_momentum_of_what_is_sent_at_once_is_that_of_sgd(size: int) -> None:
    """Whatever units gradients come in, and whatever was begun and taken back."""

    def work(rank: Rank) -> torch.Tensor:
        options = (("fraction", 0.5), ("momentum", 0.9), ("quantise", "none"))
        rank.scheme = scheme_named("topk", rank.residual, options)
        for round, units in enumerate((1.0, 8.0, 2.0)):
            rank.exchange(round + 100, units)
            rank.rollback()
            sums = rank.exchange(round, units)[: rank.numel] / units
            rank.commit()
        return sums.double() - velocities(rank, 3, 0.9, size)

    for error in ranks(size, 10_007, work):
        assert error.abs().max() < 1e-5


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_momentum_adds_up_before_it_is_chosen_and_begins_again_where_it_was(size: int) -> None:
    """Algorithm 4 of the paper, in fp64 and one value at a time."""
    numel, fraction, num_rounds, momentum = 1000, 0.05, 6, 0.9

    def work(rank: Rank) -> list[torch.Tensor]:
        options = (("fraction", fraction), ("momentum", momentum), ("quantise", "none"))
        rank.scheme = scheme_named("topk", rank.residual, options)
        found = []
        for round in range(num_rounds):
            found.append(rank.exchange(round)[:numel].double())
            rank.commit()
        return found

    found = ranks(size, numel, work)
    velocity, left = torch.zeros(size, numel, dtype=torch.float64), torch.zeros(size, numel, dtype=torch.float64)
    for round, (sums, *others) in enumerate(zip(*found, strict=True)):
        expected = torch.zeros(numel, dtype=torch.float64)
        for rank in range(size):
            velocity[rank] = momentum * velocity[rank] + Rank(rank, None, numel).gradients(round).double()  # type: ignore[arg-type]
            left[rank] += velocity[rank]
            wanted = ceil(fraction * numel)
            chosen = largest(left[rank].float(), wanted, ceil(1.5 * fraction * numel))
            expected[chosen] += left[rank, chosen]
            velocity[rank, chosen] = left[rank, chosen] = 0.0
        assert all(torch.equal(sums, other) for other in others)
        assert (sums - expected).abs().max() < 1e-5


def test_the_first_rounds_send_more_each_part_of_them_a_quarter_of_the_one_before() -> None:
    def work(rank: Rank) -> list[int]:
        rank.scheme = scheme_named("topk", rank.residual, (("fraction", 0.01), ("quantise", "none"), ("warm_up", 8)))
        sent = []
        for round in (0, 1, 2, 3, 4, 6, 7, 8, 1000):
            rank.residual.load({}, is_owed=False)
            sent.append(int(rank.exchange(round)[: rank.numel].count_nonzero()))
        return sent

    sent, _ = ranks(2, 100_003, work)
    shares = [0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.01, 0.01, 0.01, 0.01]
    two = [share + share - share * share for share in shares]  # of two ranks, whose largest fall together by chance
    assert [n / 100_003 for n in sent] == pytest.approx(two, rel=0.3)

"""Matrices as products of thin ones: what comes back whole, what only in time, and what is left as it is."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from tests.training.test_schemes import NUM_TAIL, Rank, ranks
from workers.training.exchange.registry import scheme_named
from workers.training.exchange.residual import Residual

RANK = 3
BUCKET = [torch.Size(shape) for shape in ([5], [40, 30], [4, 4], [7], [20, 3, 5, 2], [64, 2], [30, 50])]
MATRICES = (1, 4, 6)  # that factors of this rank are worth it for
NUMEL = sum(shape.numel() for shape in BUCKET)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def thin(seed: int, rank: int) -> list[torch.Tensor]:
    """Gradients, of which each matrix is of this rank."""
    found = []
    for number, shape in enumerate(BUCKET):
        rows, columns = shape[0], shape.numel() // shape[0]
        left, right = draw(seed + number, rows, rank), draw(seed + 100 + number, rank, columns)
        found.append((left @ right).view(shape) if number in MATRICES else draw(seed + number, *shape))
    return found


class Exchanging:
    """One rank's scheme, whose factors stay from round to round; what it leaves out is forgotten."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.residual = rank, Residual()
        self.scheme = scheme_named("powersgd", self.residual, (("rank", RANK),))
        self.scheme.prepare([BUCKET])

    def exchange(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        flat = torch.cat([*(g.reshape(-1) for g in gradients), torch.zeros(NUM_TAIL)])
        under_way = self.scheme.start(0, flat, NUMEL, self.rank.world)
        assert under_way is not None
        under_way.wait()
        for state in self.scheme.staged:
            state.commit()
        self.residual.rollback()
        parts = flat[:NUMEL].split([shape.numel() for shape in BUCKET])
        return [part.view(shape) for part, shape in zip(parts, BUCKET, strict=True)]


def test_matrices_of_the_rank_or_less_come_back_whole_and_what_is_no_matrix_as_it_is() -> None:
    given = [thin(0, RANK), thin(1000, 1), thin(2000, RANK)]

    def work(rank: Rank) -> list[list[torch.Tensor]]:
        exchanging = Exchanging(rank)
        return [exchanging.exchange(gradients) for gradients in given]

    for rounds in ranks(3, NUMEL, work):
        for sums, gradients in zip(rounds, given, strict=True):
            for number, (found, gradient) in enumerate(zip(sums, gradients, strict=True)):
                bound = 2e-3 if number in MATRICES else 2e-6
                torch.testing.assert_close(found, 3 * gradient, atol=bound, rtol=0.0)


def test_a_matrix_that_stays_comes_nearer_to_the_best_of_its_rank_with_each_round() -> None:
    full = [draw(number, *shape) for number, shape in enumerate(BUCKET)]

    def work(rank: Rank) -> list[float]:
        exchanging = Exchanging(rank)
        return [float(torch.linalg.matrix_norm(2 * full[1] - exchanging.exchange(full)[1])) for _ in range(30)]

    best = float(torch.linalg.vector_norm(2 * torch.linalg.svdvals(full[1])[RANK:]))
    for errors in ranks(2, NUMEL, work):
        assert errors[0] > 1.05 * best
        assert errors[-1] < 1.01 * best


def test_matrices_of_zeros_leave_no_trace() -> None:
    def work(rank: Rank) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        exchanging = Exchanging(rank)
        return exchanging.exchange([torch.zeros(shape) for shape in BUCKET]), exchanging.exchange(thin(0, RANK))

    for zeros, sums in ranks(2, NUMEL, work):
        assert not any(part.any() for part in zeros)
        for number in MATRICES:
            torch.testing.assert_close(sums[number], 2 * thin(0, RANK)[number], atol=2e-3, rtol=0.0)


@pytest.mark.parametrize("is_mixed", [True, False])
def test_on_unlike_processors_all_take_one_rank_s_directions(is_mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that cancel: the sum has no directions of its own, and each rank would find others."""
    given, number_of, qr = thin(0, RANK), dict[int, int](), torch.linalg.qr

    def found_here(values: torch.Tensor) -> SimpleNamespace:
        noise = draw(number_of[threading.get_ident()], *values.shape)
        return SimpleNamespace(Q=qr(values + 1e-6 * noise).Q)

    monkeypatch.setattr(torch.linalg, "qr", found_here)

    def work(rank: Rank) -> list[torch.Tensor]:
        number_of[threading.get_ident()] = rank.rank
        rank.world.is_mixed = is_mixed
        return Exchanging(rank).exchange([gradient if rank.rank else -gradient for gradient in given])

    one, other = ranks(2, NUMEL, work)
    are_alike = all(torch.equal(mine, its) for mine, its in zip(one, other, strict=True))
    are_right = all(bool(mine.abs().max() < 1e-4) for mine in one)
    assert (are_alike, are_right) == (is_mixed, is_mixed)

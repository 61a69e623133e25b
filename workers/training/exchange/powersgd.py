"""Matrices of gradients as the product of two thin ones (PowerSGD, Vogels et al. 2019, arXiv 1905.13727).

One step of subspace iteration a round, from where the last one ended (algorithm 1): P = sum of M Q over the ranks,
orthogonalised; Q = sum of M' P; all take P Q' for the sum of M. What a rank's own M has beyond P P' M is kept for the
next round (error feedback, algorithm 2). Both sums are all-reduces, so a rank's bytes do not grow with the ranks.

P is orthogonalised on each rank for itself where processors and numbers of threads are alike, so that replicas stay so.
Where they are not, rank 0's is everybody's: what a sum lacks in rank, its P has any directions for, others on another
processor, and what ranks' gradients have in these cancels in the sum of Qs only where all have the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from workers.training.exchange.coding import Coding
from workers.training.exchange.factors import Factors
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import InFlight, Summed
from workers.training.state import StepState
from workers.training.world import World

_LEAST_GAIN = 2  # times fewer values than the matrix has, or else it travels as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """A gradient of so many rows and columns, which begins at ``offset`` of its bucket."""

    offset: int
    num_rows: int
    num_columns: int

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The matrix (rows, columns) in a bucket's values."""
        return values[self.offset : self.end].view(self.num_rows, self.num_columns)

    @property
    def end(self) -> int:
        return self.offset + self.num_rows * self.num_columns


@dataclass(slots=True, kw_only=True)
class _Parcel:
    """Memory of one bucket's way: all Ps, what is no matrix, and the tail in ``first``; all Qs in ``second``.

    Both are sent in fp32, in fp64 where the bucket is.
    """

    number: int
    flat: torch.Tensor
    num_gradients: int
    rank: int
    matrices: Sequence[_Matrix]
    first: torch.Tensor
    second: torch.Tensor

    def ps(self) -> Iterator[tuple[_Matrix, torch.Tensor]]:
        """Each matrix and its part of ``first``: (rows, rank)."""
        at = 0
        for matrix in self.matrices:
            numel = matrix.num_rows * self.rank
            yield matrix, self.first[at : at + numel].view(matrix.num_rows, self.rank)
            at += numel

    def qs(self) -> Iterator[torch.Tensor]:
        """The parts of ``second``: (columns, rank)."""
        at = 0
        for matrix in self.matrices:
            numel = matrix.num_columns * self.rank
            yield self.second[at : at + numel].view(matrix.num_columns, self.rank)
            at += numel

    def rest(self, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What lies between the matrices and behind the last of ``values``, and its part of ``first``."""
        at = sum(matrix.num_rows for matrix in self.matrices) * self.rank
        begins = [0, *(matrix.end for matrix in self.matrices)]
        ends = [*(matrix.offset for matrix in self.matrices), values.numel()]
        for begin, end in zip(begins, ends, strict=True):
            yield values[begin:end], self.first[at : at + end - begin]
            at += end - begin

    @property
    def tail(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The tail, and its part of ``first``."""
        tail = self.flat[self.num_gradients :]
        return tail, self.first[self.first.numel() - tail.numel() :]


class _Iterated:
    """The Ps are under way, then the Qs."""

    def __init__(self, parcel: _Parcel, left: torch.Tensor, factors: Factors, coding: Coding, world: World) -> None:
        self._parcel, self._left, self._factors, self._coding = parcel, left, factors, coding
        self._world, self._transfer = world, world.all_reduce(parcel.first)
        self._ps: list[torch.Tensor] | None = None

    def forward(self) -> bool:
        if self._ps is not None:
            return False
        self._await()
        with self._coding.encode:
            ps = self._orthogonal()
        if self._world.is_mixed:
            ps = self._of_first_rank(ps)
        with self._coding.encode:
            self._ps = [*self._project(ps)]
        self._transfer = self._world.all_reduce(self._parcel.second)
        return False

    def wait(self) -> None:
        self.forward()
        self._await()
        assert self._ps is not None
        with self._coding.decode:
            self._read(self._ps)

    def _orthogonal(self) -> list[torch.Tensor]:
        """Each P of the sum, orthogonalised."""
        return [torch.linalg.qr(summed_p.float()).Q for _, summed_p in self._parcel.ps()]

    def _of_first_rank(self, ps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """These Ps as rank 0 has them: a hop more, of fewer values than any other."""
        places = [place for _, place in self._parcel.ps()]
        for place, p in zip(places, ps, strict=True):
            place.copy_(p)
        self._world.broadcast(self._parcel.first[: sum(place.numel() for place in places)], 0)
        return [place.float() for place in places]

    def _project(self, ps: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Write the Qs; each P again."""
        for (matrix, _), p, q in zip(self._parcel.ps(), ps, self._parcel.qs(), strict=True):
            left = matrix.of(self._left)
            own_q = left.T @ p
            left.addmm_(p, own_q.T, alpha=-1.0)
            q.copy_(own_q)
            yield p

    def _read(self, ps: Sequence[torch.Tensor]) -> None:
        """Let the bucket hold the sum, and stage the Qs."""
        parcel = self._parcel
        for matrix, p, summed_q in zip(parcel.matrices, ps, parcel.qs(), strict=True):
            q = summed_q.float()
            matrix.of(parcel.flat).copy_(p @ q.T)
            self._factors.stage((parcel.number, matrix.offset), q)
        for values, summed in parcel.rest(parcel.flat[: parcel.num_gradients]):
            values.copy_(summed)
        tail, summed_tail = parcel.tail
        tail.copy_(summed_tail)

    def _await(self) -> None:
        if self._transfer is not None:
            self._transfer.wait()


class PowerSgd:
    """A ``Scheme``: matrices by factors of this rank where they are few, anything else as it is."""

    name = "powersgd"
    blurs_norm, blurs_alone = True, False

    def __init__(self, residual: Residual, *, rank: int) -> None:
        self._residual, self._rank, self.coding = residual, rank, Coding()
        self._factors = Factors()
        self.staged: Sequence[StepState] = (self._factors,)
        self._matrices: list[list[_Matrix]] = []
        self._parcels: dict[int, _Parcel] = {}

    def is_relayed(self, num_ranks: int) -> bool:
        return num_ranks > 1

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        self._matrices = [[*_matrices(bucket, self._rank)] for bucket in shapes]

    def begin(self, round: int) -> None:
        return

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        gradients = flat[:num_gradients]
        if world.size == 1 or not self._matrices[number]:
            self._residual.add_to(number, gradients)
            self._residual.stage_nothing(number)
            transfer = world.all_reduce(flat)
            return None if transfer is None else Summed(transfer)
        parcel = self._parcel(number, flat, num_gradients)
        with self.coding.encode:
            left = self._write(parcel, gradients)
        return _Iterated(parcel, left, self._factors, self.coding, world)

    def _write(self, parcel: _Parcel, gradients: torch.Tensor) -> torch.Tensor:
        """Write the Ps, what is no matrix, and the tail; what is to be left out so far of this rank's gradients."""
        number, flat = parcel.number, parcel.flat
        left = self._residual.place(number, gradients).copy_(gradients)
        self._residual.add_to(number, left)
        for matrix, p in parcel.ps():
            shape = (matrix.num_columns, self._rank)
            p.copy_(matrix.of(left) @ self._factors.get((number, matrix.offset), shape, flat.device))
        for values, sent in parcel.rest(left):
            sent.copy_(values)
            values.zero_()
        tail, sent_tail = parcel.tail
        sent_tail.copy_(tail)
        return left

    def _parcel(self, number: int, flat: torch.Tensor, num_gradients: int) -> _Parcel:
        found = self._parcels.get(number)
        if found is not None and found.flat is flat:
            return found
        num_first, num_second = self._sizes(number, flat)
        parcel = self._parcels[number] = _Parcel(
            number=number,
            flat=flat,
            num_gradients=num_gradients,
            rank=self._rank,
            matrices=self._matrices[number],
            first=torch.empty(num_first, dtype=_exact(flat), device=flat.device),
            second=torch.empty(num_second, dtype=_exact(flat), device=flat.device),
        )
        return parcel

    def _sizes(self, number: int, flat: torch.Tensor) -> tuple[int, int]:
        """How many values travel first, and then."""
        matrices = self._matrices[number]
        num_rest = flat.numel() - sum(m.num_rows * m.num_columns for m in matrices)
        num_rows, num_columns = sum(m.num_rows for m in matrices), sum(m.num_columns for m in matrices)
        return num_rows * self._rank + num_rest, num_columns * self._rank


def share_sent(shapes: Sequence[torch.Size], rank: int) -> float:
    """How many values travel for gradients of these shapes, of all that they have."""
    matrices, numel = [*_matrices(shapes, rank)], sum(map(prod, shapes))
    num_left_out = sum(m.num_rows * m.num_columns - rank * (m.num_rows + m.num_columns) for m in matrices)
    return 1.0 - num_left_out / max(1, numel)


def _matrices(shapes: Sequence[torch.Size], rank: int) -> Iterator[_Matrix]:
    """Those of a bucket that factors are worth it for; of more dimensions than two, all but the first are columns."""
    offset = 0
    for shape in shapes:
        numel = prod(shape)
        num_rows = shape[0] if len(shape) > 1 else 1
        num_columns = numel // max(1, num_rows)
        if _LEAST_GAIN * rank * (num_rows + num_columns) < numel:
            yield _Matrix(offset=offset, num_rows=num_rows, num_columns=num_columns)
        offset += numel


def _exact(flat: torch.Tensor) -> torch.dtype:
    return torch.float64 if flat.dtype is torch.float64 else torch.float32

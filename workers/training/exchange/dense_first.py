"""Gradients as they are in the buckets that leave first, which backward may hide; by another scheme in the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.exchange_options import BUCKET_MIB, in_buckets
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Dense, InFlight, Scheme
from workers.training.world import World


class DenseFirst:
    """A ``Scheme``: the first ``num_dense`` buckets by all-reduce, with what was left out of them before."""

    def __init__(self, others: Scheme, num_dense: int, residual: Residual) -> None:
        self.name = in_buckets(others.name, BUCKET_MIB, num_dense)
        self.blurs_norm, self.blurs_alone = others.blurs_norm, others.blurs_alone
        self.staged, self.coding = others.staged, others.coding
        self._dense, self._others, self._num_dense = Dense(residual), others, num_dense

    def is_relayed(self, num_ranks: int) -> bool:
        return self._others.is_relayed(num_ranks)

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        dense = shapes[: self._num_dense]
        self._others.prepare([*([] for _ in dense), *shapes[self._num_dense :]])

    def begin(self, round: int) -> None:
        self._others.begin(round)

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        scheme = self._dense if number < self._num_dense else self._others
        return scheme.start(number, flat, num_gradients, world)

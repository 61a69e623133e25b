"""Momentum of this rank's own gradients, for schemes that send them late (DGC, Lin et al. 2017, arXiv 1712.01887)."""

from __future__ import annotations

import torch

from workers.training.exchange.residual import Residual


class Velocity:
    """A ``StepState`` of one rank and one membership: a flat tensor for each bucket, by its number; it begins at rest.

    With u = ``momentum`` u + g the rank sends of what adds up of u instead of g (equation 4, momentum correction):
    where all of it is sent, the sums over all ranks are what SGD with that momentum steps by. Where values
    are chosen, those that are sent begin again (equation 5, momentum factor masking), so that steps are smaller. In the
    units of the gradients' ``residual``. A parameter without a gradient in some round goes on by its velocity; one that
    no rank used keeps it for a round in which it is, as with SGD.
    """

    def __init__(self, residual: Residual, momentum: float) -> None:
        self._residual, self._momentum = residual, momentum
        self._held: dict[int, torch.Tensor] = {}
        self._staged: dict[int, torch.Tensor] = {}
        self._held_scale = 1.0

    def of(self, number: int, gradients: torch.Tensor) -> torch.Tensor:
        """This round's velocity by a bucket's gradients, in fp32 at least; not to be written to."""
        exact = torch.promote_types(gradients.dtype, torch.float32)
        velocity, held = gradients.to(exact, copy=True), self._held.get(number)
        if held is not None:
            velocity.add_(held, alpha=self._momentum * self._residual.expected_scale / self._held_scale)
        self._staged[number] = velocity
        return velocity

    def stop(self, number: int, chosen: torch.Tensor) -> None:
        """These of a bucket's (indexes) are sent, and begin again from rest."""
        self._staged[number].index_fill_(0, chosen, 0.0)

    def commit(self) -> None:
        for number, begin, end in self._residual.unused():
            held, staged = self._held.get(number), self._staged.get(number)
            if staged is not None:
                scale = self._residual.scale / self._held_scale
                staged[begin:end] = 0.0 if held is None else held[begin:end] * scale
        if self._staged:
            self._held, self._staged, self._held_scale = self._staged, {}, self._residual.scale

    def rollback(self) -> None:
        self._staged = {}

"""How one bucket's sum over all ranks comes about. One class a scheme; the plan names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from workers.training.exchange.coding import Coding
from workers.training.exchange.residual import Residual
from workers.training.state import StepState
from workers.training.world import Transfer, World


class InFlight(Protocol):
    """A bucket under way. All ranks forward and await the same buckets in the same order."""

    def forward(self) -> bool:
        """Wait for the hop under way and begin the next, where there is one; whether another call may do more.

        Raises WorldError.
        """

    def wait(self) -> None:
        """Wait until the bucket holds the sum, decoded in place. Raises WorldError."""


class Convoy:
    """Several under way, of which the later ones' early hops go first: while one's slow hop runs, so do others' fast.

    All ranks forward and await convoys of the same.
    """

    def __init__(self, under_way: Sequence[InFlight]) -> None:
        self._all, self._waiting = under_way, list(reversed(under_way))
        self._moving: list[InFlight] = []

    def forward(self) -> bool:
        if self._waiting:
            self._moving.insert(0, self._waiting.pop())
        self._moving = [transfer for transfer in self._moving if transfer.forward()]
        return bool(self._waiting or self._moving)

    def wait(self) -> None:
        while self.forward():
            pass
        for transfer in self._all:
            transfer.wait()


class Scheme(Protocol):
    """Encodes a bucket, sends it by a collective and decodes what comes back into the same memory.

    All ranks start the same buckets in the same order. The first ``num_gradients`` values may come
    back approximately; those after them (the vector, buffers) must be summed as they are. What a scheme leaves out
    of a bucket it may keep in the ``Residual``; what it finds there it must add. ``blurs_norm``: the norm of what comes
    back is larger than that of the sum, by more than an estimate from it can bear; ``blurs_alone``: also that of one
    rank's. ``staged``: what else of it a round
    changes; it is of one membership, and the residual's fate is its own. ``coding`` notes what it takes to encode and
    decode.
    """

    name: str
    blurs_norm: bool
    blurs_alone: bool
    staged: Sequence[StepState]
    coding: Coding

    def is_relayed(self, num_ranks: int) -> bool:
        """Whether a bucket has to take more than one hop between so many ranks."""
        ...

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        """Learn the layout before anything else: the shapes of each bucket's gradients, in their order."""

    def begin(self, round: int) -> None:
        """The next buckets are of this round of the job, counted from 0."""

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        """Send the layout's bucket of this number; None where the world is one rank. Raises WorldError."""
        ...


class Summed:
    """One hop, which adds up in place."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def forward(self) -> bool:
        return False

    def wait(self) -> None:
        self._transfer.wait()


class Dense:
    """Gradients as they are, by all-reduce."""

    name = "none"
    blurs_norm = blurs_alone = False
    staged: Sequence[StepState] = ()

    def __init__(self, residual: Residual) -> None:
        self._residual, self.coding = residual, Coding()

    def is_relayed(self, num_ranks: int) -> bool:
        return False

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        return

    def begin(self, round: int) -> None:
        return

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        if not self._residual.is_empty:
            self._residual.add_to(number, flat[:num_gradients])
            self._residual.stage_nothing(number)
        transfer = world.all_reduce(flat)
        return None if transfer is None else Summed(transfer)

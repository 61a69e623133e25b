"""How one bucket's sum over all ranks comes about. One class a scheme; the plan names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from workers.errors import JobError
from workers.training.state import StepState
from workers.training.world import World


class InFlight(Protocol):
    """A bucket under way."""

    def wait(self) -> None:
        """Wait until the bucket holds the sum, decoded in place. Raises WorldError."""


class Scheme(Protocol):
    """Encodes a bucket, sends it by a collective and decodes what comes back into the same memory.

    All ranks start the same buckets in the same order. The first ``num_gradients`` values may come
    back approximately; those after them (the vector, buffers) must be summed as they are.
    """

    @property
    def states(self) -> Sequence[StepState]:
        """What the scheme remembers from round to round (residuals, factors), staged until the commit."""
        ...

    def start(self, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        """Send a bucket; None where the world is one rank. Raises WorldError."""
        ...

    def wire_bytes(self, flat: torch.Tensor, num_gradients: int, num_ranks: int) -> float:
        """Bytes that one rank sends for this bucket."""
        ...


class Dense:
    """Gradients as they are, by all-reduce."""

    states: Sequence[StepState] = ()

    def start(self, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        return world.all_reduce(flat)

    def wire_bytes(self, flat: torch.Tensor, num_gradients: int, num_ranks: int) -> float:
        return 2.0 * flat.numel() * flat.element_size() * (num_ranks - 1) / num_ranks


_SCHEMES: dict[str, type[Scheme]] = {"none": Dense}


def scheme_named(name: str) -> Scheme:
    """A fresh scheme of that name. Raises JobError for one that is not built."""
    if name not in _SCHEMES:
        raise JobError(f"the exchange scheme {name!r} is not built; use one of {', '.join(_SCHEMES)}")
    return _SCHEMES[name]()

"""The factors that PowerSGD begins a round with: those that the last one ended with, as a matrix changes slowly."""

from __future__ import annotations

import torch


class Factors:
    """A ``StepState``, the same on all ranks: a matrix (columns, rank) for each gradient, by bucket and offset in it.

    Of one membership: all members begin the next with new ones, since a newcomer would have none. What a factor lacks
    at first, error feedback brings.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], torch.Tensor] = {}
        self._staged: dict[tuple[int, int], torch.Tensor] = {}

    def get(self, key: tuple[int, int], shape: tuple[int, int], device: torch.device) -> torch.Tensor:
        """The factor that the last commit left, or one made of random numbers that depend on the key alone."""
        held = self._held.get(key)
        if held is None or held.shape != shape:
            number, offset = key
            draw = torch.Generator().manual_seed(number * 2**40 + offset)
            held = self._held[key] = torch.randn(shape, dtype=torch.float32, generator=draw).to(device)
        return held

    def stage(self, key: tuple[int, int], sums: torch.Tensor) -> None:
        """Let these be the factor, each column of length 1; one that came to nothing could never grow and stays."""
        lengths = torch.linalg.vector_norm(sums, dim=0)
        self._staged[key] = torch.where(lengths > 0, sums / lengths, self._held[key])

    def commit(self) -> None:
        self._held |= self._staged
        self._staged.clear()

    def rollback(self) -> None:
        self._staged.clear()

"""The small vector that rides with the gradients: what all ranks must know of a round, summed over them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice

import torch

from workers.errors import UserCodeError

MAX_USER_VALUES = 16
MAX_NAME_CHARS = 100
VALUES_REASON = (
    f"loss returned more than {MAX_USER_VALUES} values besides the loss, or a name longer than {MAX_NAME_CHARS} "
    f"characters; the first {MAX_USER_VALUES} of shorter names are kept; return fewer"
)


class Slot(IntEnum):
    """Where a sum lies; the user's values follow."""

    LOSS = 0  # times weight
    WEIGHT = 1
    SAMPLES = 2
    HOLDS_PENDING = 3
    UNUSED_PARAMETERS = 4
    CHANGED_BUFFERS = 5
    NAMES = 6
    NUM_NAMED = 7
    NOISE_SQUARES = 8
    NOISE_PIECES = 9
    NOISE_COST = 10
    TOKENS = 11
    PADDED_TOKENS = 12
    DIVISION = 13
    TRIALS = 14
    NOISE_SCALE = 15  # rank 0's, as an average may lack on a rank what memory did not suffice for; below 0: unknown


_DIVISIONS, _MIXING = 16_381, 31
"""Numbers by which ranks see that they divide alike are below it, so that sums of a thousand are exact in fp32."""

NUM_SLOTS = len(Slot) + MAX_USER_VALUES


@dataclass(slots=True)
class LocalSums:
    """This rank's part of a round, summed over its micro-batches. Weighted values are in units times value.

    ``samples`` are those drawn, also where none of their units count. ``tokens`` and ``padded_tokens`` are theirs by
    the lengths that the task tells, ``division`` is a small number by which ranks see that they divide alike.
    ``is_trial``: the micro-batch, or who reads samples, is on trial.
    """

    loss: float | torch.Tensor = 0.0
    weight: float = 0.0
    samples: int = 0
    names: tuple[str, ...] | None = None
    user: list[float | torch.Tensor] = field(default_factory=list)
    is_cut: bool = False
    tokens: int = 0
    padded_tokens: int = 0
    division: float = 0.0
    is_trial: bool = False

    def count(self, samples: int, tokens: int, padded_tokens: int) -> None:
        """Count what was drawn for one micro-batch."""
        self.samples += samples
        self.tokens += tokens
        self.padded_tokens += padded_tokens

    def join(self, later: LocalSums) -> None:
        """Count a later batch's as well. Raises UserCodeError where its names differ."""
        self.loss, self.weight = self.loss + later.loss, self.weight + later.weight
        self.count(later.samples, later.tokens, later.padded_tokens)
        self.division = (_MIXING * self.division + later.division) % _DIVISIONS
        self.is_trial |= later.is_trial
        self.is_cut |= later.is_cut
        if later.names is not None:
            self._count_values(later.names, later.user)

    def add(self, loss: torch.Tensor, weight: float, values: Mapping[str, float | torch.Tensor]) -> None:
        """Count one micro-batch; values past the bound are left out, and ``is_cut`` tells so.

        Raises UserCodeError where its names differ from those before it.
        """
        self.loss = self.loss + read(loss) * weight
        self.weight += weight
        names = _kept(values)
        self.is_cut |= len(names) < len(values)
        self._count_values(names, [read(values[n]) * weight for n in names])

    def _count_values(self, names: tuple[str, ...], weighted: Sequence[float | torch.Tensor]) -> None:
        if self.names is None:
            self.names, self.user = names, [*weighted]
        elif names == self.names:
            self.user = [total + value for total, value in zip(self.user, weighted, strict=True)]
        else:
            raise UserCodeError(
                f"loss returned the values {list(names)} for one micro-batch and {list(self.names)} for another; "
                "return the same names in the same order every time"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSums:
    """What ``num_pieces`` micro-batches tell of the gradient's noise: the sum of weight times |mean gradient|^2.

    ``cost`` is what the last measurement took of its round, summed over ranks; 0 from one that does not know.
    ``scale`` is what rank 0 knows of the noise scale, in samples, negative where it knows nothing; 0 from all others.
    """

    squares: float | torch.Tensor = 0.0
    num_pieces: int = 0
    cost: float = 0.0
    scale: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalSums:
    """The vector after the exchange. ``user`` is empty on a rank that knows no names.

    ``noise_scale`` is rank 0's before this round, in samples; None where it knows none.
    """

    loss: float
    weight: float
    samples: int
    num_holding: int
    has_unused: bool
    has_changed_buffers: bool
    noise_squares: float
    noise_pieces: int
    noise_cost: float
    noise_scale: float | None
    user: Mapping[str, float]
    tokens: float
    padded_tokens: float
    division: float
    is_trial: bool

    @property
    def useful_tokens(self) -> float | None:
        """The share of tokens that are no padding; None where the task tells no lengths."""
        return self.tokens / self.padded_tokens if self.padded_tokens > 0 else None

    @property
    def mean_loss(self) -> float:
        return self.loss / self.weight if self.weight > 0 else float("nan")


def encode(
    sums: LocalSums, noise: NoiseSums, num_holding: int, num_unused: int, num_changed: int
) -> Sequence[float | torch.Tensor]:
    """The vector's values, ``NUM_SLOTS`` at most; the rest is 0."""
    named = (0.0, 0.0) if sums.names is None else (checksum(sums.names), 1.0)
    counts = (sums.samples, num_holding, num_unused, num_changed)
    told = (noise.squares, noise.num_pieces, noise.cost)
    lengths = (sums.tokens, sums.padded_tokens, sums.division)
    return (sums.loss, sums.weight, *counts, *named, *told, *lengths, sums.is_trial, noise.scale, *sums.user)


def decode(values: Sequence[float], names: tuple[str, ...] | None) -> GlobalSums:
    """Read the summed vector. ``names`` are this rank's own, or those it knew last.

    Raises UserCodeError where ranks returned different names.
    """
    num_named = round(values[Slot.NUM_NAMED])
    user: dict[str, float] = {}
    if names and num_named:
        if abs(values[Slot.NAMES] - num_named * checksum(names)) > 0.5:
            raise UserCodeError(
                f"loss returned other names than {list(names)} on another rank; return the same names for every batch"
            )
        user = dict(zip(names, values[len(Slot) :], strict=False))
    return GlobalSums(
        loss=values[Slot.LOSS],
        weight=values[Slot.WEIGHT],
        samples=round(values[Slot.SAMPLES]),
        num_holding=round(values[Slot.HOLDS_PENDING]),
        has_unused=values[Slot.UNUSED_PARAMETERS] > 0,
        has_changed_buffers=values[Slot.CHANGED_BUFFERS] > 0,
        noise_squares=values[Slot.NOISE_SQUARES],
        noise_pieces=round(values[Slot.NOISE_PIECES]),
        noise_cost=values[Slot.NOISE_COST],
        noise_scale=scale if (scale := values[Slot.NOISE_SCALE]) >= 0.0 else None,
        user=user,
        tokens=values[Slot.TOKENS],
        padded_tokens=values[Slot.PADDED_TOKENS],
        division=values[Slot.DIVISION],
        is_trial=values[Slot.TRIALS] > 0,
    )


def checksum(names: Sequence[str]) -> float:
    """A small number that tells lists of names apart; sums of a thousand of them are exact in fp32."""
    return float(zlib.crc32("\n".join(names).encode()) % _DIVISIONS) if names else 0.0


def read(value: float | torch.Tensor) -> float | torch.Tensor:
    """A number as a float; on an accelerator as the 0-dimensional tensor that it is, so that nothing waits for it."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    return value.item() if value.device.type == "cpu" else value.detach().double()


def _kept(values: Mapping[str, object]) -> tuple[str, ...]:
    """The first names of a length that a chart can show; the same on all ranks, which return the same."""
    wrong = next((name for name in values if not isinstance(name, str)), None)
    if wrong is not None:
        raise UserCodeError(f"loss returned a value under {wrong!r:.80}; name it by a text")
    return tuple(islice((name for name in values if len(name) <= MAX_NAME_CHARS), MAX_USER_VALUES))

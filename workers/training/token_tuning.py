"""The forward passes of this worker where samples have lengths: what they hold, and how many tokens that allows."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from workers.measures import Footprint
from workers.training import footprint
from workers.training.micro import Choice
from workers.training.pass_tokens import PassTokens

LOOK_S = 1.0
"""So often a round's memory is looked at."""

NUM_SETTLING = 2
"""Rounds in which libraries and the optimizer take what they keep."""


class TokenTuning:
    """As ``MicroTuning`` for samples; ``tokens`` decides, on what the device of this worker tells."""

    is_trying = False

    def __init__(self, tokens: PassTokens, device: torch.device) -> None:
        self._tokens, self._device = tokens, device
        self._num_settled, self._looked_s, self._peak_bytes = 0, 0.0, 0
        self._settled: int | None = None
        self.within, self.halve = tokens.within, tokens.halve

    def again(self) -> None:
        """What a pass takes has changed."""
        self._num_settled, self._peak_bytes, self._settled = 0, 0, None
        footprint.restart_peak(self._device)
        self._tokens.again()

    def regrouped(self) -> None:
        """Other workers compute beside this one: what passes hold stays."""

    def release(self) -> None:
        """See ``MicroTuning.release``."""
        footprint.release(self._device)

    def begin(self, num_samples: int) -> int:
        """Passes have as many samples as their tokens allow."""
        return 1

    def run(self, compute: Callable[[], object], largest: Callable[[], int]) -> None:
        """Compute a part; ``largest`` tells the tokens of its largest pass then."""
        self._num_settled += 1
        now_s = time.monotonic()
        if self._num_settled <= NUM_SETTLING or now_s - self._looked_s < LOOK_S:
            compute()
            return
        self._looked_s = now_s
        self._peak_bytes = max(self._peak_bytes, footprint.peak_bytes(self._device))
        footprint.trim(self._device)
        footprint.restart_peak(self._device)
        compute()
        self._tokens.seen(largest(), footprint.peak_bytes(self._device), footprint.room(self._device))

    def fitting(self) -> int | None:
        """How many tokens of a pass are expected to fit; None while that is unknown."""
        return None if self._tokens.line is None else self._tokens.fitting(footprint.room(self._device))

    def footprint(self) -> Footprint:
        """What this worker's passes hold and may hold, as known by now."""
        line = self._tokens.line
        self._peak_bytes = max(self._peak_bytes, footprint.peak_bytes(self._device))
        return Footprint(
            peak_bytes=self._peak_bytes,
            limit_bytes=footprint.room(self._device).limit_bytes,
            fixed_bytes=None if line is None else line.fixed_bytes,
            sample_bytes=None if line is None else line.token_bytes,
            tokens=self._tokens.within(self._tokens.largest) if self._tokens.largest else None,
        )

    def watch(self) -> Choice | None:
        """Follow the memory that there is; a choice where it asks for other passes."""
        choice = self._tokens.watch(footprint.room(self._device))
        if choice is not None:
            footprint.release(self._device)
        return choice

    def is_news(self, choice: Choice) -> bool:
        """A choice is made where something has changed."""
        return True

    def replaced(self, size: int, *, is_whole: bool = False) -> int | None:
        """Settle on ``size``, and tell which one that replaces; None where it is the first."""
        before, self._settled = self._settled, size
        return before

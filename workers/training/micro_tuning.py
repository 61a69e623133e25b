"""This worker's micro-batch: sizes tried by the clock and the memory of its device, and what was chosen."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from workers.measures import Footprint
from workers.training import footprint
from workers.training.micro import Choice, MicroSize
from workers.training.stopwatch import Stopwatch

LEAST_NORMALISED = 32
"""Samples that batch normalisation needs for its statistics: Wu and He 2018, arXiv 1803.08494, figure 1."""


class MicroTuning:
    """``sizes`` decides, on what the device of this worker tells."""

    def __init__(self, sizes: MicroSize, device: torch.device) -> None:
        self._sizes, self._device = sizes, device
        self._begun_s = float("-inf")
        self._settled: int | None = None
        self._most: int | None = None
        self._was_whole = False
        self.within, self.halve, self.again = sizes.within, sizes.halve, sizes.again
        self.regrouped = sizes.regrouped

    def cap(self, most: int) -> None:
        """Never more than ``most`` samples from now on, however much memory there seems to be."""
        if self._most is None or most < self._most:
            self._most = most
            self._sizes.halve(2 * most, is_for_good=True)

    def release(self) -> None:
        """Give back what passes of another size have left; call it after a lack of memory, once its frames are gone."""
        footprint.release(self._device)

    @property
    def is_trying(self) -> bool:
        """Whether sizes are being tried, so that rounds tell little of what others will take."""
        return self._sizes.is_trying

    def begin(self, num_samples: int) -> int:
        """The size for the coming round's part; call it once a round. Nothing is tried for a part of 0."""
        now_s = time.perf_counter()
        since_s, self._begun_s = now_s - self._begun_s, now_s
        return self._sizes.begin(num_samples, self._held_bytes, since_s)

    def _held_bytes(self) -> int:
        """Without what was freed before: passes would take of that, as if of nothing."""
        footprint.trim(self._device)
        return footprint.held(self._device)

    def run(self, compute: Callable[[], float | None], num_samples: int, size: int) -> Choice | None:
        """Compute a part of ``num_samples`` at ``size``; a choice where the size was on trial and is settled now.

        ``compute`` gives the host's least seconds a sample of all its passes but the first.
        """
        if not self._sizes.is_trying or num_samples == 0:
            compute()
            return None
        if self._sizes.may_grow:
            footprint.trim(self._device)  # else a larger pass before may hide what this one holds
        footprint.restart_peak(self._device)
        watch = Stopwatch()
        warm_s = compute()
        footprint.wait(self._device)
        seconds = watch.seconds() / num_samples
        peak_bytes, room = footprint.peak_bytes(self._device), footprint.room(self._device)
        # An accelerator is not done with a pass when the host is.
        choice = self._sizes.measured(size, seconds, peak_bytes, room, warm_s if self._device.type == "cpu" else None)
        if choice is not None:
            footprint.restart_peak(self._device)  # from here on it is that of the size chosen
        return choice

    def footprint(self) -> Footprint:
        """What this worker's passes hold and may hold, as known by now."""
        fixed_bytes, sample_bytes = self._sizes.bytes_line or (None, None)
        return Footprint(
            peak_bytes=footprint.peak_bytes(self._device),
            limit_bytes=footprint.room(self._device).limit_bytes,
            fixed_bytes=fixed_bytes,
            sample_bytes=sample_bytes,
        )

    def watch(self) -> Choice | None:
        """Follow the memory that there is; a choice where it asks for fewer samples."""
        choice = self._sizes.watch(lambda: footprint.room(self._device))
        if choice is not None:
            footprint.release(self._device)
        return choice

    def is_news(self, choice: Choice) -> bool:
        """Whether it is another size, and not once more the whole of a part."""
        return choice.size != self._settled and not (choice.is_whole and self._was_whole)

    def replaced(self, size: int, *, is_whole: bool = False) -> int | None:
        """Settle on ``size``, and tell which one that replaces; None where it is the first."""
        before, self._settled, self._was_whole = self._settled, size, is_whole
        return before


def least_size(model: nn.Module) -> int:
    """The smallest micro-batch that may be chosen for a model without asking."""
    return LEAST_NORMALISED if any(isinstance(module, _NormBase) for module in model.modules()) else 1

"""Makes a model compute in the format that the plan says, and takes it back without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch

from workers.plan import Format, Precision
from workers.training.device import TORCH_DTYPES
from workers.training.precision.guard import Fp32Guard
from workers.training.precision.scaler import LossScaler


class PrecisionApplier:
    """One format for the whole model, by autocast; weights and optimizer state stay as the user made them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._enter: Callable[[], AbstractContextManager[object]] = nullcontext
        self.format = Format.FP32

    def apply(self, precision: Precision) -> bool:
        """Compute in this format from the next ``computing`` on; False where that changes nothing."""
        is_other, self.format = precision.format is not self.format, precision.format
        self._enter = nullcontext if precision.format is Format.FP32 else self._autocast
        return is_other

    def remove(self) -> None:
        """Compute as the user's code alone would."""
        self.apply(Precision(format=Format.FP32))

    def computing(self) -> AbstractContextManager[object]:
        """The context of a forward pass and its loss."""
        return self._enter()

    def scaler(self, present: LossScaler | None) -> LossScaler | None:
        """The loss scaler that the format needs: the present one, a fresh one, or none."""
        return (present or LossScaler()) if self.format is Format.FP16 else None

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(self._device.type, dtype=TORCH_DTYPES[self.format]))
            if self._device.type == "cpu":
                stack.enter_context(Fp32Guard())
            yield

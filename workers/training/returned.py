"""What the user's code returned for a batch, checked before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import SupportsFloat

import torch

from workers.errors import UserCodeError


def checked_loss(result: object) -> tuple[torch.Tensor, Mapping[str, float | torch.Tensor]]:
    """What ``loss`` returned, as the loss and further values. Raises UserCodeError for anything else."""
    loss, values = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not isinstance(values, Mapping):
        seen = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise UserCodeError(
            f"loss returned {seen}; return a scalar tensor, or (scalar tensor, {{name: value}}), a mean over the batch"
        )
    wrong = next((name for name, value in values.items() if not _is_number(value)), None)
    if wrong is not None:
        raise UserCodeError(f"loss returned {values[wrong]!r:.80} under {wrong!r:.80}; return a number there")
    if not loss.requires_grad:
        raise UserCodeError(
            "loss returned a tensor that depends on no parameter with a gradient; "
            "compute it from the model's output, without detach or no_grad"
        )
    return loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss, values


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, SupportsFloat)


def checked_weight(weight: object) -> float:
    """What ``weight`` returned, in units of the batch. Raises UserCodeError where it is no number of them."""
    try:
        value = float(weight)  # type: ignore[arg-type]  # whatever the user's code returned; what cannot be read is told
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserCodeError(f"weight returned {weight!r:.80}; return the number of units of the batch, at least 0")
    return value

"""Optimizer state as plain values, so that reading a checkpoint never runs code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from workers.errors import CheckpointError


def plain_state(value: Any, place: str = "optimizer") -> Any:
    """An optimizer's state as tensors, numbers, texts, lists and dicts, which load without running any code.

    Raises CheckpointError that names the place of anything else.
    """
    match value:
        case None | bool() | torch.dtype() | torch.device():
            return value
        case torch.Tensor():
            return _own_memory(value.detach().as_subclass(torch.Tensor))
        case np.generic():
            return value.item()
        case np.ndarray():
            return torch.from_numpy(np.array(value))
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case Mapping():
            return {_plain_key(k, place): plain_state(v, f"{place}[{k!r}]") for k, v in value.items()}
        case list() | tuple():
            items = [plain_state(v, f"{place}[{i}]") for i, v in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
    raise CheckpointError(
        f"{place} is a {type(value).__name__}, which a checkpoint cannot hold; "
        "an optimizer's state must be tensors, numbers, texts, lists and dicts"
    )


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy where it is a view: torch.save would write all that it is a view of."""
    is_view = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return tensor.clone() if is_view else tensor


def _plain_key(key: Any, place: str) -> int | str:
    if isinstance(key, int | str):
        return key
    raise CheckpointError(
        f"{place} has the key {key!r:.80}; the keys of an optimizer's state must be texts or integers"
    )

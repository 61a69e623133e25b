"""Complex parameters as real numbers, which are all that schemes exchange: both parts, side by side."""

from __future__ import annotations

import torch


def real_shape(parameter: torch.Tensor) -> torch.Size:
    """Of what ``as_real`` gives; a matter of the shape and the format alone."""
    return torch.Size((*parameter.shape, 2)) if parameter.is_complex() else parameter.shape


def as_real(values: torch.Tensor) -> torch.Tensor:
    """The same memory in real numbers; with one dimension more, of two, where these are complex."""
    return torch.view_as_real(values) if values.is_complex() else values

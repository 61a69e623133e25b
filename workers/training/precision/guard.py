"""Keeps in fp32 what autocast on a CPU does not: normalisation, softmax and losses.

On CUDA torch's autocast has these on its own list; on a CPU they run in bf16 or fp16 as their input
comes (https://github.com/pytorch/pytorch/pull/76661: "softmax is only up-casted on GPU").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_KEPT: frozenset[Callable[..., Any]] = frozenset(
    {
        F.layer_norm,
        F.group_norm,
        F.batch_norm,
        F.instance_norm,
        F.local_response_norm,
        F.rms_norm,
        F.normalize,
        F.softmax,
        F.log_softmax,
        F.softmin,
        F.gumbel_softmax,
        F.cross_entropy,
        F.nll_loss,
        F.kl_div,
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.poisson_nll_loss,
        F.cosine_similarity,
        torch.softmax,
        torch.log_softmax,
        torch.logsumexp,
        torch.cumsum,
        torch.Tensor.softmax,
        torch.Tensor.log_softmax,
        torch.Tensor.logsumexp,
        torch.Tensor.cumsum,
    }
)
_LOW = (torch.bfloat16, torch.float16)


class Fp32Guard(TorchFunctionMode):
    """While it is entered, the functions above compute in fp32, whatever the format of their input."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _KEPT:
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return func(*(_raised(a) for a in args), **{k: _raised(v) for k, v in kwargs.items()})


def _raised(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _LOW else value

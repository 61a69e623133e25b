"""What an optimizer remembers of squared gradients, when the global batch changes.

The square of a mean over B samples is |G|^2 + tr(Sigma) / B on average. An average of it that was taken over small
batches is larger than what large ones bring: with Adam's beta2 = 0.999 steps stay too small for a thousand of them.
In proportion to what the gradient noise scale tells, it is what it would be had the batch been so large all along; for
gradients that are all noise this is what the square root rule asks for (Malladi et al. 2022, arXiv 2205.10287,
definition 5.1: v scales with 1 / B).
"""

from __future__ import annotations

import torch

from workers.lr import gain

_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
"""Names of averages of squared gradients, as torch's optimizers have them."""


def follow_batch(optimizer: torch.optim.Optimizer, noise_scale: float | None, before: int, batch: int) -> None:
    """Let averages over batches of ``before`` samples be those of ``batch`` ones; as they are without a noise scale.

    Alike on all ranks that hold the same and know the same ``noise_scale``, in samples.
    """
    if noise_scale is None or before == batch:
        return
    averages = [
        average
        for held in optimizer.state.values()
        for name in _SQUARES
        if isinstance(average := held.get(name), torch.Tensor)
    ]
    if averages:
        torch._foreach_mul_(averages, 1.0 / gain(noise_scale, before, batch))

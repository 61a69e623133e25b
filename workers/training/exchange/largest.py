"""Finding a tensor's largest values without sorting it: on a CPU a threshold is read off a sample.

How many reach that an accelerator would have to tell the host, which would wait for it; it finds the exact number.
"""

from __future__ import annotations

import functools

import torch

ROOM = 1.5
"""What is found may be so many times as much as is wanted: a payload has one size whatever it holds."""

_MOST_STRIDE = 97
_LEAST_SAMPLE = 4096
_SMALLEST = torch.finfo(torch.float32).tiny  # zeros are not chosen


def largest(values: torch.Tensor, wanted: int, most: int) -> torch.Tensor:
    """The indexes, ascending, of about ``wanted`` values (fp32, one dimension) that are largest by amount.

    At most ``most`` of them: where more reach the threshold, as with many equal ones, the largest of those. Values that
    are not finite go first. Whoever has the same values gets the same indexes. On an accelerator it is as many as are
    wanted, with zeros where there is too little else, and the host waits for nothing.
    """
    amounts = values.abs()
    if values.device.type != "cpu":
        return amounts.topk(min(wanted, most, values.numel()), sorted=False).indices.sort().values
    stride = max(1, min(values.numel() // _LEAST_SAMPLE, _MOST_STRIDE))
    sample = amounts if stride == 1 else amounts[_places(values.numel() // stride, stride)]
    place = min(sample.numel(), max(1, round(wanted / stride)))
    threshold = sample.kthvalue(sample.numel() - place + 1).values.clamp_(min=_SMALLEST)
    # Not "at least", which no NaN is.
    chosen = (amounts < threshold).logical_not_().nonzero().view(-1)
    if chosen.numel() > most:
        best = amounts[chosen].topk(most, sorted=False).indices
        chosen = chosen[best].sort().values
    return chosen


@functools.lru_cache(maxsize=256)
def _places(num_blocks: int, stride: int) -> torch.Tensor:
    """One place in each block of ``stride``, by chance and alike everywhere: a step follows columns, or a kernel."""
    chance = torch.Generator().manual_seed(num_blocks)
    return torch.arange(num_blocks) * stride + torch.randint(stride, (num_blocks,), generator=chance)

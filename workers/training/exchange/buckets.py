"""Gradients in flat memory: which parameter's gradient lies where, and what rides behind the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

# Small enough to leave early. DDP's 1 MiB cost 3 % of a step at 3 MB of gradients on two ranks of one
# machine, where a second collective takes more of the cores than its overlap gives back.
FIRST_BUCKET_BYTES = 4 * 2**20
BUCKET_BYTES = 25 * 2**20

_EXACT = (torch.float32, torch.float64)


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Gradients that travel together. ``flat`` is all that travels, ``gradients`` its first part."""

    indexes: list[int]
    flat: torch.Tensor
    gradients: torch.Tensor
    num_missing: int = 0
    is_launched: bool = False


@dataclass(slots=True, kw_only=True)
class Layout:
    """``views`` are the parameters' gradients by index; ``tail`` is ``tail_numel`` values of an exact format.

    The last bucket carries the tail where its format is exact; else it is a bucket of its own.
    """

    buckets: list[Bucket]
    views: list[torch.Tensor]
    tail: torch.Tensor
    bucket_of: list[Bucket] = field(default_factory=list)


def lay_out(parameters: Sequence[nn.Parameter], tail_numel: int) -> Layout:
    """Buckets in the order in which backward is likely to fill them: reversed registration.

    The first is small so that it leaves early; each holds one format on one device.
    """
    groups = grouped(parameters)
    first = parameters[0]
    rides = parameters[groups[-1][0]].dtype in _EXACT
    buckets, views = [], [torch.empty(0)] * len(parameters)
    tail = torch.zeros(tail_numel, dtype=torch.float32, device=first.device)
    for number, indexes in enumerate(groups):
        numel = sum(parameters[i].numel() for i in indexes)
        extra = tail_numel if rides and number == len(groups) - 1 else 0
        like = parameters[indexes[0]]
        flat = torch.zeros(numel + extra, dtype=like.dtype, device=like.device)
        offset = 0
        for i in indexes:
            views[i] = flat[offset : offset + parameters[i].numel()].view(parameters[i].shape)
            offset += parameters[i].numel()
        if extra:
            tail = flat[numel:]
        buckets.append(Bucket(indexes=indexes, flat=flat, gradients=flat[:numel]))
    if not rides:
        buckets.append(Bucket(indexes=[], flat=tail, gradients=tail[:0]))
    layout = Layout(buckets=buckets, views=views, tail=tail)
    where = {i: bucket for bucket in buckets for i in bucket.indexes}
    layout.bucket_of = [where[i] for i in range(len(parameters))]
    return layout


def grouped(parameters: Sequence[nn.Parameter]) -> list[list[int]]:
    """The indexes of each bucket's parameters; a matter of the parameters alone."""
    groups: list[list[int]] = []
    open_groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    size_bytes: dict[int, int] = {}
    for i in reversed(range(len(parameters))):
        parameter = parameters[i]
        kind = (parameter.dtype, parameter.device)
        if kind not in open_groups:
            open_groups[kind] = []
            groups.append(open_groups[kind])
        group = open_groups[kind]
        group.append(i)
        total = size_bytes.get(id(group), 0) + parameter.numel() * parameter.element_size()
        size_bytes[id(group)] = total
        if total >= (FIRST_BUCKET_BYTES if group is groups[0] else BUCKET_BYTES):
            del open_groups[kind]
    return sorted(groups, key=lambda group: -group[-1])

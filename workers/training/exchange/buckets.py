"""Gradients in flat memory: which parameter's gradient lies where, and what rides behind the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from workers.exchange_options import BUCKET_MIB, SMALLER_BUCKETS_MIB
from workers.training.exchange.reals import real_shape

MIB = 2**20

# Small enough to leave early. DDP's 1 MiB cost 3 % of a step at 3 MB of gradients on two ranks of one
# machine, where a second collective takes more of the cores than its overlap gives back.
FIRST_BUCKET_MIB = 4

MOST_BUCKETS = 64
"""That may be chosen: more are so small that a link has hardly begun to carry one when it ends."""

_EXACT = (torch.float32, torch.float64)


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Gradients that travel together. ``flat`` is all that travels, in real numbers; ``gradients`` its first part."""

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


def lay_out(parameters: Sequence[nn.Parameter], tail_numel: int, bucket_mib: int = BUCKET_MIB) -> Layout:
    """Buckets in the order in which backward is likely to fill them: reversed registration.

    Each is closed when it has ``bucket_mib`` of gradients, the last when there are no more, and the first sooner so
    that it leaves early; a large parameter makes a large bucket. Each holds one format on one device.
    """
    groups = grouped(parameters, bucket_mib)
    first = parameters[0]
    rides = parameters[groups[-1][0]].dtype.to_real() in _EXACT
    buckets, views = [], [torch.empty(0)] * len(parameters)
    tail = torch.zeros(tail_numel, dtype=torch.float32, device=first.device)
    for number, indexes in enumerate(groups):
        numel = sum(real_shape(parameters[i]).numel() for i in indexes)
        extra = tail_numel if rides and number == len(groups) - 1 else 0
        like = parameters[indexes[0]]
        flat = torch.zeros(numel + extra, dtype=like.dtype.to_real(), device=like.device)
        offset = 0
        for i in indexes:
            shape = real_shape(parameters[i])
            real = flat[offset : offset + shape.numel()].view(shape)
            views[i] = torch.view_as_complex(real) if parameters[i].is_complex() else real
            offset += shape.numel()
        if extra:
            tail = flat[numel:]
        buckets.append(Bucket(indexes=indexes, flat=flat, gradients=flat[:numel]))
    if not rides:
        buckets.append(Bucket(indexes=[], flat=tail, gradients=tail[:0]))
    layout = Layout(buckets=buckets, views=views, tail=tail)
    where = {i: bucket for bucket in buckets for i in bucket.indexes}
    layout.bucket_of = [where[i] for i in range(len(parameters))]
    return layout


def grouped(parameters: Sequence[nn.Parameter], bucket_mib: int = BUCKET_MIB) -> list[list[int]]:
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
        if total >= MIB * (min(FIRST_BUCKET_MIB, bucket_mib) if group is groups[0] else bucket_mib):
            del open_groups[kind]
    return sorted(groups, key=lambda group: -group[-1])


def cuts(parameters: Sequence[nn.Parameter]) -> dict[int, tuple[float, ...]]:
    """Each bucket's share of the gradients' bytes, in the order in which they leave, by mebibytes of a bucket.

    The usual buckets come first; smaller ones where they are more than the larger ones, and not too many.
    """
    num_bytes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    found: dict[int, tuple[float, ...]] = {}
    for bucket_mib in (BUCKET_MIB, *SMALLER_BUCKETS_MIB):
        groups = grouped(parameters, bucket_mib)
        if not found or max(map(len, found.values())) < len(groups) <= MOST_BUCKETS:
            found[bucket_mib] = tuple(sum(num_bytes[i] for i in group) / max(1, sum(num_bytes)) for group in groups)
    return found

"""What it takes this worker to encode and decode gradients: what a scheme is chosen by, beside the link."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import isqrt

import torch

from workers.exchange_options import filled
from workers.measures import SchemeCost
from workers.training.device import best_in_turns, synchronize
from workers.training.exchange.codecs import Codec
from workers.training.exchange.echo import Echo
from workers.training.exchange.powersgd import share_sent
from workers.training.exchange.registry import CODECS, scheme_named
from workers.training.exchange.residual import Residual
from workers.training.exchange.two_four import TwoFour
from workers.training.world import World

NUM_VALUES = 2**18
"""Encoded at a time; on a CPU a million would cost a start four times as much and tell the same."""

NUM_VALUES_THERE = 2**22
"""The same on an accelerator, where of less the handing over would be most: a bucket or so."""

_MILLION, _FP32_BYTES = 1e6, 4


def measure_schemes(device: torch.device, lossy: Sequence[torch.Size] = ()) -> Mapping[str, SchemeCost]:
    """What each format costs on this device, by name: encoded once and decoded twice, with all copies and sums.

    As in an exchange of two ranks, where copies take up to three times as long as rounding. With the gradients' shapes
    also what schemes cost that a job may pay for in loss. The best of a few repeats in turns, a fifth of a second in
    all, a third with those. Draws no random numbers.
    """
    num_values = NUM_VALUES if device.type == "cpu" else NUM_VALUES_THERE
    values_1N = torch.linspace(-1.0, 1.0, num_values, dtype=torch.float32, device=device).sin_().view(1, -1)
    codecs: Mapping[str, Codec] = {**CODECS, TwoFour.name: TwoFour()} if lossy else CODECS
    names = (*codecs, "powersgd", "topk") if lossy else tuple(codecs)
    worlds = {name: Echo(device) for name in names if name != "none"}
    passes = {name: _exchanged(name, values_1N, world) for name, world in worlds.items()}
    for once in passes.values():
        once()  # the first pass sets libraries up
    num_bytes = {name: codec.num_bytes(num_values) / num_values for name, codec in codecs.items()}
    if lossy:
        num_bytes["powersgd"] = _FP32_BYTES * share_sent(lossy, int(dict(filled("powersgd", {}))["rank"]))
        num_bytes["topk"] = worlds["topk"].num_bytes / num_values
    seconds = {**best_in_turns(passes), "none": 0.0}  # an all-reduce adds up where values lie
    return {
        name: SchemeCost(bytes_a_value=num_bytes[name], seconds_a_million=seconds[name] * _MILLION / num_values)
        for name in names
    }


def _exchanged(name: str, values_1N: torch.Tensor, world: World) -> Callable[[], float]:
    """One exchange of a square matrix by the scheme of this name, as it is without options."""
    scheme, side = scheme_named(name, Residual()), isqrt(values_1N.numel())
    scheme.prepare([[torch.Size([side, side])]])
    flat = torch.empty_like(values_1N[0])

    def once() -> float:
        flat.copy_(values_1N[0])
        synchronize(world.device)
        begun_s = time.perf_counter()
        under_way = scheme.start(0, flat, side * side, world)
        assert under_way is not None
        under_way.wait()
        synchronize(world.device)
        return time.perf_counter() - begun_s

    return once

"""What it takes this worker to encode and decode gradients: what a scheme is chosen by, beside the link."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from workers.measures import SchemeCost
from workers.training.device import best_in_turns, synchronize
from workers.training.exchange.codecs import Codec
from workers.training.exchange.registry import CODECS

NUM_VALUES = 2**18
"""Encoded at a time; a million would cost a start four times as much and tell the same."""

_MILLION = 1e6


def measure_schemes(device: torch.device) -> Mapping[str, SchemeCost]:
    """What each format costs on this device, by name: encoded once and decoded twice, as in one exchange.

    The best of a few repeats in turns, a fifth of a second in all. Draws no random numbers.
    """
    values_1N = torch.linspace(-1.0, 1.0, NUM_VALUES, device=device).sin_().view(1, -1)
    passes = {name: _timed(codec, values_1N) for name, codec in CODECS.items()}
    for once in passes.values():
        once()  # the first pass sets libraries up
    seconds = {**best_in_turns(passes), "none": 0.0}  # an all-reduce adds up where values lie
    return {
        name: SchemeCost(
            bytes_a_value=codec.num_bytes(NUM_VALUES) / NUM_VALUES,
            seconds_a_million=seconds[name] * _MILLION / NUM_VALUES,
        )
        for name, codec in CODECS.items()
    }


def _timed(codec: Codec, values_1N: torch.Tensor) -> Callable[[], float]:
    num_bytes, device = codec.num_bytes(NUM_VALUES), values_1N.device
    payload_1B = torch.empty(1, num_bytes, dtype=torch.uint8, device=device)
    decoded_1N, error_1N = torch.empty_like(values_1N), torch.empty_like(values_1N) if codec.has_error else None

    def once() -> float:
        synchronize(device)
        begun_s = time.perf_counter()
        codec.encode(values_1N, payload_1B, error_1N)
        codec.decode(payload_1B, decoded_1N)
        codec.decode(payload_1B, decoded_1N)
        synchronize(device)
        return time.perf_counter() - begun_s

    return once

"""What a round measures: times, norms and sums, under the contract's telemetry keys."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from workers.training import device as devices
from workers.training.mailbox import Gauges

GAUGE_INTERVAL_S = 1.0


@dataclass(slots=True)
class RoundTimes:
    """Seconds of one round on this rank. ``exposed_s`` is the part of the exchange that it waited for."""

    data_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    exposed_s: float = 0.0
    optimizer_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """A round's other telemetry; ``loss_scale`` is None without loss scaling."""

    loss: float
    grad_norm: float
    lr: float
    samples: int
    global_batch: int
    micro_batch: int
    workers: int
    step_s: float
    wire_bytes: float
    memory_bytes: int
    loss_scale: float | None
    user: Mapping[str, float]


def telemetry(facts: RoundFacts, times: RoundTimes) -> dict[str, float]:
    """Values by telemetry key; what is not finite is left out."""
    values = {
        "loss": facts.loss,
        "lr": facts.lr,
        "global_batch": float(facts.global_batch),
        "micro_batch": float(facts.micro_batch),
        "workers": float(facts.workers),
        "samples_per_s": facts.samples / max(facts.step_s, 1e-9),
        "grad_norm": facts.grad_norm,
        "data_s": times.data_s,
        "compute_s": times.compute_s,
        "exchange_s": times.exchange_s,
        "exposed_s": times.exposed_s,
        "optimizer_s": times.optimizer_s,
        "step_s": facts.step_s,
        "wire_bytes": facts.wire_bytes,
        "memory_bytes": float(facts.memory_bytes),
    }
    if facts.loss_scale is not None:
        values["loss_scale"] = facts.loss_scale
    for name, value in facts.user.items():
        values[f"user.{name}"] = value
    return {key: value for key, value in values.items() if math.isfinite(value)}


class GaugeReader:
    """Memory and utilisation of this worker's device, read at most once a second."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._read_s = -math.inf
        self.memory_bytes = 0
        self.gpu_utilisation: float | None = None

    def is_due(self) -> bool:
        """Read anew if the last reading is old; False where it is not."""
        now_s = time.monotonic()
        if now_s - self._read_s < GAUGE_INTERVAL_S:
            return False
        self._read_s = now_s
        self.memory_bytes = devices.memory_bytes(self._device)
        self.gpu_utilisation = devices.gpu_utilisation(self._device)
        return True

    def gauges(self, micro_size: int) -> Gauges:
        """The last reading as the polls show it."""
        return Gauges(micro_size=micro_size, memory_bytes=self.memory_bytes, gpu_utilisation=self.gpu_utilisation)

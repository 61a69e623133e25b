"""What a round measures by the clock, and what this worker's device tells of itself."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from workers.measures import Footprint
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

    def values(self) -> dict[str, float]:
        """By telemetry key."""
        return {
            "data_s": self.data_s,
            "compute_s": self.compute_s,
            "exchange_s": self.exchange_s,
            "exposed_s": self.exposed_s,
            "optimizer_s": self.optimizer_s,
        }


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

    def gauges(self, micro_size: int, footprint: Footprint) -> Gauges:
        """The last reading as the polls show it."""
        return Gauges(
            micro_size=micro_size,
            memory_bytes=self.memory_bytes,
            gpu_utilisation=self.gpu_utilisation,
            footprint=footprint,
        )

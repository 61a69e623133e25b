"""What this worker's device tells of itself, read now and then."""

from __future__ import annotations

import math
import time

import torch

from workers.measures import Footprint
from workers.training import device as devices
from workers.training.gauges import Gauges

GAUGE_INTERVAL_S = 1.0


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

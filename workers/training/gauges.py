"""What a poll shows of this worker's memory and device."""

from __future__ import annotations

from dataclasses import dataclass

from workers.measures import Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What changes now and then besides the position."""

    micro_size: int | None = None
    memory_bytes: int = 0
    gpu_utilisation: float | None = None
    footprint: Footprint | None = None

"""What the seconds of a round went into."""

from __future__ import annotations

from dataclasses import dataclass


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

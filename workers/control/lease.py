"""A worker's lease: seconds that it really ran without a call from a controller. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TICK_S = 2.0
"""Longer pauses between two ticks were no running time: the process was stopped, or the machine asleep."""


@dataclass(slots=True)
class Lease:
    """Garbage collection, not safety: an expired worker saves and ends itself.

    ``tick`` is called about once a second with a monotonic clock. A process that was stopped for an
    hour has not run for an hour, so it does not expire on waking.
    """

    lease_s: float
    now_s: float
    waited_s: float = 0.0

    def renew(self) -> None:
        """A controller called."""
        self.waited_s = 0.0

    def tick(self, now_s: float) -> bool:
        """Count the time since the last tick; whether the lease has expired."""
        self.waited_s += min(max(0.0, now_s - self.now_s), MAX_TICK_S)
        self.now_s = now_s
        return self.waited_s > self.lease_s

"""How much of its log a worker delivers: what is written faster than that for long is left out in the middle."""

from __future__ import annotations

import math
import threading

from workers.training.logs import LogReader

RATE_BYTES_S = 256 * 2**10
"""Delivered for long; 15 MB a minute, where a person reads a thousandth of that."""

BURST_BYTES = 2**20
MAX_BEHIND_BYTES = 8 * 2**20
"""Written and not yet delivered; past it the log goes on with its newest half of that."""

REASON = (
    f"a worker wrote its log faster than {RATE_BYTES_S // 2**10} KiB a second until {MAX_BEHIND_BYTES // 2**20} MiB of "
    "it waited; parts of the log are left out, and it says where; print less"
)


class Budget:
    """Bytes that may be delivered now. ``now_s`` is any clock that only grows."""

    def __init__(self) -> None:
        self._bytes = float(BURST_BYTES)
        self._filled_s = -math.inf
        self._lock = threading.Lock()

    def take(self, wanted: int, now_s: float) -> int:
        """Up to ``wanted`` bytes; give back by ``put`` what was not used."""
        with self._lock:
            passed_s = min(now_s - self._filled_s, BURST_BYTES / RATE_BYTES_S)
            self._bytes = min(BURST_BYTES, self._bytes + passed_s * RATE_BYTES_S)
            self._filled_s = now_s
            taken = min(wanted, int(self._bytes))
            self._bytes -= taken
            return taken

    def put(self, unused: int) -> None:
        """Have bytes back."""
        with self._lock:
            self._bytes += unused


def begin_at(logs: LogReader, offset: int) -> int:
    """Where to go on reading: at ``offset``, which is delivered, or further on where too much waits.

    What is skipped is freed, so that the disk does not fill while nobody takes the log.
    """
    size = logs.size()
    if size - offset <= MAX_BEHIND_BYTES:
        return offset
    begin = logs.line_after(size - MAX_BEHIND_BYTES // 2)
    logs.free(offset, begin)
    return begin

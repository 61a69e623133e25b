"""Identifiers: sortable by the time they were made, or derived from what they name."""

from __future__ import annotations

import base64
import re
import secrets
import threading

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32 in lower case
_LENGTH = 26
_RANDOM_BITS = 80

JOB_ID = re.compile(rf"job_[{_ALPHABET}]{{{_LENGTH}}}")
SWEEP_ID = re.compile(rf"sweep_[{_ALPHABET}]{{{_LENGTH}}}")
SCHEDULE_ID = re.compile(rf"sched_[{_ALPHABET}]{{{_LENGTH}}}")


class IdSource:
    """Makes ids that sort in the order they were made, also within one millisecond of one process."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def job_id(self, now_s: float) -> str:
        """``job_`` and 26 characters: 48 bits of milliseconds, then 80 random bits."""
        return f"job_{self._next(now_s)}"

    def sweep_id(self, now_s: float) -> str:
        """``sweep_`` and 26 characters, as of a job."""
        return f"sweep_{self._next(now_s)}"

    def schedule_id(self, now_s: float) -> str:
        """``sched_`` and 26 characters, as of a job."""
        return f"sched_{self._next(now_s)}"

    def _next(self, now_s: float) -> str:
        value = (int(now_s * 1000) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        with self._lock:
            if value >> _RANDOM_BITS <= self._last >> _RANDOM_BITS:
                value = self._last + 1 + secrets.randbits(32)
            self._last = value
        return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))


def bundle_id(sha256: str) -> str:
    """The id of an archive: the same bytes, the same id."""
    return "bundle_" + base64.b32encode(bytes.fromhex(sha256)).decode().lower()[:_LENGTH]

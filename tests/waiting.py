"""Waiting for something that another process brings about: bounded, and named when it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 60.0


def wait_for(
    what: str, condition: Callable[[], object], limit_s: float = LIMIT_S, told: Callable[[], str] = lambda: ""
) -> None:
    """Wait until something holds; fails with its name, and what was ``told``, after ``limit_s`` seconds."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not come within {limit_s:.0f} s {told()}"
        time.sleep(0.02)

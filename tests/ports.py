"""Ports for servers of tests that begin to listen only seconds after they were told where."""

from __future__ import annotations

import random
from pathlib import Path

from service.supervise.ports import free_port, is_free

LEAST = 20_000
LEAST_CHOICE = 1000
GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The range of ports for whoever asks for any, and for each connection that goes out."""


def quiet_port() -> int:
    """A TCP port that is free on loopback, and stays so: the system gives it to nobody who does not name it.

    Where it keeps hardly any back, one that was free just now.
    """
    first = int(GIVEN.read_text().split()[0])
    if first < LEAST + LEAST_CHOICE:
        return free_port()
    # Not by the seed of a test: processes of tests that run side by side would try the same ones.
    ports = random.SystemRandom().sample(range(LEAST, first), LEAST_CHOICE)
    return next(port for port in ports if is_free(port))

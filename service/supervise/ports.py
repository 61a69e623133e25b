"""Ports of this machine's loopback: which are free, who speaks on them, and the socket that the API listens on."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

LEAST = 20_000
NUM_TRIES = 1000
GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux: the range of ports for whoever asks for any, and for each connection that goes out."""


class PortTakenError(Exception):
    """Another program listens there."""


def free_port() -> int:
    """A TCP port that is free on loopback, for a server that listens there only seconds later.

    The system gives it to nobody who does not name it; where it keeps hardly any back, it was free just now.
    """
    try:
        first = int(GIVEN.read_text().split()[0])
    except OSError:
        first = 0
    # Not by a seed: processes that start at the same time would try the same ones.
    ports = random.SystemRandom().sample(range(LEAST, first), NUM_TRIES) if first >= LEAST + NUM_TRIES else []
    return next((port for port in ports if is_free(port)), None) or _given_port()


def _given_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether a TCP port on loopback can be listened on now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def speaks(port: int, timeout_s: float) -> bool:
    """Whether a server that speaks first, as gRPC does, is at work on a TCP port of loopback.

    That a connection is accepted says nothing: the kernel does it for a process that is stopped, too.
    """
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s) as connection:
            return bool(connection.recv(1))
    except OSError:
        return False


def listen(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """A listening socket. The supervisor keeps it, so that callers wait while the API is started again.

    Raises PortTakenError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise PortTakenError(
            f"port {port} on {host} cannot be listened on ({error.strerror}); choose another by --port, or 0 for any"
        ) from None
    return listener

"""The bytes that a group's connections have sent, as the kernel counts them for each."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from workers.training import sockets
from workers.training.sockets import Place
from workers.training.store import Address

_INFO = struct.Struct("=B127xQ8xI52xQ")
"""Of ``struct tcp_info`` in <linux/tcp.h>: ``tcpi_state``, ``tcpi_bytes_received``, ``tcpi_notsent_bytes``, and
``tcpi_bytes_sent``, there since Linux 4.19."""
_ESTABLISHED = 1

Connection: TypeAlias = tuple[int, int]
"""The device and the inode of its socket."""


class _Told(NamedTuple):
    is_open: bool
    """Whether both ends may still send."""
    sent: int
    received: int


class Traffic:
    """One group's connections, for all threads.

    Among ``places`` may be others than those to the ``num_peers``: somebody knocked just as the group formed.
    """

    def __init__(self, places: Collection[Place], num_peers: int = 1) -> None:
        self._places, self._num_peers = tuple(places), num_peers
        self._sent = {_connection(place): 0 for place in places}
        self._lock = threading.Lock()
        self.gone_at: int | None = None
        """Bytes that had travelled when they were last read, in both directions, where a connection was closed by then,
        by either end; None where all were there."""

    def sent_bytes(self) -> int:
        """Bytes that this process has given to the connections so far, and those that TCP had to send again.

        Those are the values and gloo's own headers, a few dozen bytes a message, but not the headers of TCP, IP and
        what lies below. What is still in the kernel counts as well, so that nothing is told late. A connection that
        is closed by now stays at what was read of it last. Some 5 microseconds a connection.
        """
        opened, received = set(), 0
        with self._lock:
            for place in self._places:
                told = _told(place)
                if told is not None:
                    connection = _connection(place)
                    self._sent[connection] = max(self._sent[connection], told.sent)
                    opened |= {connection} if told.is_open else set()
                    received += told.received
            sent = sum(self._sent.values())
            self.gone_at = None if len(opened) >= self._num_peers else sent + received
        return sent

    def by_connection(self) -> dict[Connection, int]:
        """What ``sent_bytes`` has of each connection."""
        self.sent_bytes()
        return dict(self._sent)


def traffic_of(own: Collection[Address], peers: Collection[Address], num_peers: int) -> Traffic | None:
    """The traffic of a group whose ``num_peers`` others are connected, found as for ``sockets.shut_down``.

    None where it cannot be counted: the kernel does not tell, or not all connections are found. Of several ranks in
    one process each counts some connections of the others as well.
    """
    places = sockets.connections(own, peers)
    # A place that is gone by now may have been a duplicate, through which another thread just looked at a connection.
    known = [place for place in places if _told(place) is not None]
    if len({_connection(place) for place in known}) < num_peers:
        return None
    return Traffic(known, num_peers)


def _connection(place: Place) -> Connection:
    """The same for all descriptors of one connection."""
    return place.device, place.inode


def _told(place: Place) -> _Told | None:
    if sys.platform != "linux":
        return None
    try:
        duplicate = place.duplicate()
    except OSError:  # no descriptor is left to look through, which says nothing against the connection
        return _Told(is_open=True, sent=0, received=0)
    if duplicate is None:
        return None
    with duplicate:
        told = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    if len(told) < _INFO.size:
        return None
    state, received, not_sent, sent = _INFO.unpack(told)
    return _Told(state == _ESTABLISHED, sent + not_sent, received)

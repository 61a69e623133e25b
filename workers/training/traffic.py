"""The bytes that a group's connections have sent, as the kernel counts them for each."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Collection
from typing import NamedTuple

from workers.training import sockets
from workers.training.sockets import Place
from workers.training.store import Address

_INFO = struct.Struct("=B143xI52xQ")
"""Of ``struct tcp_info`` in <linux/tcp.h>: ``tcpi_state``, ``tcpi_notsent_bytes``, and ``tcpi_bytes_sent``, there since
Linux 4.19."""
_ESTABLISHED = 1


class _Told(NamedTuple):
    is_open: bool
    """Whether both ends may still send."""
    sent: int


class Traffic:
    """One group's connections; to be read by one thread at a time, whatever becomes of them in others."""

    def __init__(self, places: Collection[Place]) -> None:
        self._places = tuple(places)
        self._sent = {_connection(place): 0 for place in places}
        self.is_whole = True
        """Whether all connections were there when they were last read, closed by neither end."""

    def sent_bytes(self) -> int:
        """Bytes that this process has given to the connections so far, and those that TCP had to send again.

        Those are the values and gloo's own headers, a few dozen bytes a message, but not the headers of TCP, IP and
        what lies below. What is still in the kernel counts as well, so that nothing is told late. A connection that
        is closed by now stays at what was read of it last. Some 5 microseconds a connection.
        """
        opened = set()
        for place in self._places:
            told = _told(place)
            if told is not None:
                connection = _connection(place)
                self._sent[connection] = max(self._sent[connection], told.sent)
                opened |= {connection} if told.is_open else set()
        self.is_whole = len(opened) == len(self._sent)
        return sum(self._sent.values())


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
    return Traffic(known)


def _connection(place: Place) -> tuple[int, int]:
    """The same for all descriptors of one connection."""
    return place.device, place.inode


def _told(place: Place) -> _Told | None:
    if sys.platform != "linux":
        return None
    duplicate = place.duplicate()
    if duplicate is None:
        return None
    with duplicate:
        told = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    if len(told) < _INFO.size:
        return None
    state, not_sent, sent = _INFO.unpack(told)
    return _Told(state == _ESTABLISHED, sent + not_sent)

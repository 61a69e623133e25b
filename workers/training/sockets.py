"""The sockets of a gloo group, found among all of the process's: to be broken at once, or counted.

gloo's own abort does nothing: a pending collective runs to its timeout. Shutting down duplicates of
its connected sockets makes it fail within milliseconds, also across a cut link. The listening socket
must be spared (gloo ends the process when that one breaks), and so must everybody else's sockets:
a group's are known by the addresses at which its members listen.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from workers.training.store import Address

_DESCRIPTORS = Path("/dev/fd")
_MIN_RTT_AT = 148
"""Where Linux's ``tcp_info`` has the shortest round trip of late, in microseconds; all bits set is none yet."""
_NO_RTT = 2**32 - 1


class Place(NamedTuple):
    """Where somebody else's socket is found again: its descriptor, as long as that leads to this inode."""

    descriptor: int
    device: int
    inode: int

    def duplicate(self) -> socket.socket | None:
        """A duplicate, which cannot be reused under our hands; None where the socket has been closed.

        To be closed within microseconds: as long as it is open, peers do not see that the socket was closed. Raises
        OSError where this process may open no more.
        """
        try:
            descriptor = os.dup(self.descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return None
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            os.close(descriptor)
            return None
        # The family matters to names alone; unless all three are given, the system is asked for them.
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)


def listening() -> dict[int, Address]:
    """The addresses at which this process listens for TCP, by socket inode."""
    found = {}
    for place, duplicate in _stream_sockets():
        if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found[place.inode] = _address(duplicate.getsockname())
    return found


def connections(own: Collection[Address], peers: Collection[Address]) -> list[Place]:
    """Where every connection is that one of our ``own`` listeners took, or that leads to a peer's."""
    return [place for place, _ in _connected(own, peers)]


def shut_down(own: Collection[Address], peers: Collection[Address]) -> int:
    """Break every one of these connections; returns how many."""
    num_broken = 0
    for _, duplicate in _connected(own, peers):
        with suppress(OSError):  # not connected any more
            duplicate.shutdown(socket.SHUT_RDWR)
            num_broken += 1
    return num_broken


def round_trips_s(peers: Collection[Address]) -> dict[Address, float]:
    """The shortest time that the kernel lately saw from data to its receipt, by the peer that we connected to."""
    found: dict[Address, float] = {}
    for _, duplicate in _stream_sockets():
        with suppress(OSError):  # not connected (any more)
            peer = _address(duplicate.getpeername())
            told = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
            if peer in peers and len(told) == _MIN_RTT_AT + 4:
                [microseconds] = struct.unpack_from("I", told, _MIN_RTT_AT)
                found |= {peer: microseconds / 1e6} if microseconds != _NO_RTT else {}
    return found


def _connected(own: Collection[Address], peers: Collection[Address]) -> Iterator[tuple[Place, socket.socket]]:
    for place, duplicate in _stream_sockets():
        if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            continue
        try:
            is_ours = _address(duplicate.getsockname()) in own or _address(duplicate.getpeername()) in peers
        except OSError:
            continue  # not connected (any more)
        if is_ours:
            yield place, duplicate


def _stream_sockets() -> Iterator[tuple[Place, socket.socket]]:
    """The place and a short-lived duplicate of every TCP socket; a duplicate cannot be reused under our hands."""
    for name in os.listdir(_DESCRIPTORS):
        try:
            descriptor = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        found = os.fstat(descriptor)
        if not stat.S_ISSOCK(found.st_mode):
            os.close(descriptor)
            continue
        with socket.socket(fileno=descriptor) as duplicate:
            if duplicate.type == socket.SOCK_STREAM and duplicate.family in (socket.AF_INET, socket.AF_INET6):
                yield Place(int(name), found.st_dev, found.st_ino), duplicate


def _address(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return (name[0], name[1])

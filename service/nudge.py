"""Nudges between the processes of one service: "look at the database now".

A nudge is an empty datagram to a UNIX socket in ``home/run``. It is speed only, the row is truth:
a lost one costs a polling interval. The API listens as ``api``, the reconciler as ``reconciler``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from service.folders import run_folder

API = "api"
RECONCILER = "reconciler"

MAX_SOCKET_PATH_BYTES = 100  # the kernel's bound is 108 with the closing zero


def socket_path(home: Path, name: str) -> Path:
    """The socket on which process ``name`` listens."""
    return run_folder(home) / f"{name}.sock"


def nudge(home: Path, name: str) -> bool:
    """Wake process ``name``; False when nobody listens, which is no fault. Never blocks."""
    path = socket_path(home, name)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, _short(path) as address:
            sender.setblocking(False)
            sender.sendto(b"", address)
    except OSError:
        # A full queue means that the listener has a nudge waiting already.
        return False
    return True


class NudgeListener:
    """Receives nudges for one process; opened and closed in its event loop."""

    def __init__(self, home: Path, name: str) -> None:
        self._path = socket_path(home, name)
        self._arrived = asyncio.Event()
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Take the socket over from a dead predecessor and listen. Raises OSError if the folder cannot be used."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        try:
            with _short(self._path) as address:
                listener.bind(address)
            os.chmod(self._path, 0o600)
        except OSError:
            listener.close()
            raise
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._drain)

    def close(self) -> None:
        """Stop listening; the socket's file goes."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)

    def wake(self) -> None:
        """As if a nudge had come; from within the process."""
        self._arrived.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a nudge, at most ``timeout_s``; whether one came. Several before the call count as one."""
        # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the nudge.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        was_nudged = self._arrived.is_set()
        self._arrived.clear()
        return was_nudged

    def _drain(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(16)
                self._arrived.set()


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """An address for the socket that fits the kernel's bound also under a long home directory."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

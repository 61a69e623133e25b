"""A TCP proxy that spoils connections on purpose: delays, cuts, resets. For the database, for Ray, for the API.

Runs in the event loop of the test; ``TcpProxy`` in a thread of its own serves tests without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

CHUNK_BYTES = 65_536
END_S = 10.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends a reset


@dataclass
class TcpProxy:
    """Forwards what comes to ``port`` to ``target``; every attribute may be changed while it runs.

    ``delay_s`` is added to each piece in either direction. ``is_refusing``: new connections are reset.
    ``is_deaf``: answers of the target are swallowed, as where a link is cut in one direction only.
    """

    target: tuple[str, int]
    delay_s: float = 0.0
    is_refusing: bool = False
    is_deaf: bool = False
    num_accepted: int = 0
    num_answers: int = 0
    port: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        self.num_accepted += 1
        if self.is_refusing:
            _reset(writer)
            return
        try:
            there, away = await asyncio.open_connection(*self.target)
        except OSError:
            _reset(writer)
            return
        self._open |= {writer, away}
        try:
            await asyncio.gather(self._pump(reader, away, is_answer=False), self._pump(there, writer, is_answer=True))
        finally:
            self._open -= {writer, away}

    def cut(self) -> None:
        """Close every connection as if its other side had ended in order."""
        for writer in list(self._open):
            writer.close()

    def reset(self) -> None:
        """Break every connection with a reset."""
        for writer in list(self._open):
            _reset(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if is_answer:
                    self.num_answers += 1
                    if self.is_deaf:
                        continue
                writer.write(data)
                await writer.drain()
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    plain: socket.socket | None = writer.get_extra_info("socket")
    if plain is not None and plain.fileno() >= 0:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@asynccontextmanager
async def proxied(host: str, port: int) -> AsyncIterator[TcpProxy]:
    """A proxy on a free port of loopback while the block runs; its connections end with it."""
    proxy = TcpProxy((host, port))
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.reset()


@contextmanager
def proxied_in_thread(host: str, port: int) -> Iterator[tuple[TcpProxy, asyncio.AbstractEventLoop]]:
    """As ``proxied``; call ``cut`` and ``reset`` by the loop's ``call_soon_threadsafe``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    context = proxied(host, port)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(END_S), loop
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(END_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_S)
        loop.close()

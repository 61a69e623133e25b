"""A TCP proxy that spoils connections on purpose: delays, cuts, resets. For the database, for Ray, for the API.

Runs in the event loop of the test; ``proxied_in_thread`` serves tests without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

CHUNK_BYTES = 65_536
END_S = 10.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends a reset

Connect: TypeAlias = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass
class TcpProxy:
    """Forwards what comes to ``port`` to where ``connect`` leads; every attribute may be changed while it runs.

    ``delay_s`` is added to each piece in either direction. ``is_refusing``: new connections are reset.
    ``is_deaf``: answers are swallowed, as where a link is cut in one direction only. ``is_keeping_open``: the end
    of one side is not handed on. ``num_chunks`` pieces have come in either direction, ``num_answers`` of them as
    answers.
    """

    connect: Connect
    delay_s: float = 0.0
    is_refusing: bool = False
    is_deaf: bool = False
    is_keeping_open: bool = False
    num_accepted: int = 0
    num_chunks: int = 0
    num_answers: int = 0
    port: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _has_refused: asyncio.Event = field(default_factory=asyncio.Event)
    _reset_at_chunk: int | None = None

    def cut(self) -> None:
        """Close every connection as if its other side had ended in order."""
        for writer in list(self._open):
            writer.close()

    def reset(self) -> None:
        """Break every connection with a reset, as a rebooted router would."""
        for writer in list(self._open):
            _reset(writer)

    def reset_at_chunk(self, number: int) -> None:
        """Break everything once so many more pieces have come, in the middle of whatever that is."""
        self._reset_at_chunk = self.num_chunks + number

    def reset_no_more(self) -> None:
        """Take back a ``reset_at_chunk`` whose piece has not come: how many pieces a request makes varies."""
        self._reset_at_chunk = None

    def refuse(self) -> None:
        """Break every connection, and every new one at once, until ``is_refusing`` is taken back."""
        self.is_refusing = True
        self._has_refused.clear()
        self.reset()

    async def has_refused(self) -> None:
        """Wait until somebody came since ``refuse``."""
        await self._has_refused.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        self.num_accepted += 1
        if self.is_refusing:
            self._has_refused.set()
            _reset(writer)
            return
        try:
            there, away = await self.connect()
        except OSError:
            _reset(writer)
            return
        self._open |= {writer, away}
        try:
            await asyncio.gather(self._pump(reader, away, is_answer=False), self._pump(there, writer, is_answer=True))
        finally:
            self._open -= {writer, away}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                self.num_chunks += 1
                self.num_answers += is_answer
                if self.num_chunks == self._reset_at_chunk:
                    self.reset()
                if is_answer and self.is_deaf:
                    continue
                writer.write(data)
                await writer.drain()
        if not self.is_keeping_open:
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    plain: socket.socket | None = writer.get_extra_info("socket")
    if plain is not None and plain.fileno() >= 0:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def to_port(port: int) -> Connect:
    """Leads to a port of loopback."""
    return lambda: asyncio.open_connection("127.0.0.1", port)


@asynccontextmanager
async def proxied(connect: Connect, listener: socket.socket | None = None) -> AsyncIterator[TcpProxy]:
    """A proxy while the block runs, on a free port of loopback unless told; its connections end with it."""
    proxy = TcpProxy(connect)
    server = await asyncio.start_server(proxy.serve, sock=listener or socket.create_server(("127.0.0.1", 0)))
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.reset()


@contextmanager
def proxied_in_thread(
    connect: Connect, listener: socket.socket | None = None
) -> Iterator[tuple[TcpProxy, asyncio.AbstractEventLoop]]:
    """As ``proxied``, beside a test without an event loop; call its methods by the loop's ``call_soon_threadsafe``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    context = proxied(connect, listener)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(END_S), loop
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(END_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_S)
        loop.close()

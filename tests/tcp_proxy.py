"""A network that can be cut: passes connections on, and breaks them when told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

CHUNK_BYTES = 65536

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class TcpProxy:
    """Listens on a free port of loopback while it is entered; ``connect`` reaches what is behind it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_refusing = False
        self._has_refused = asyncio.Event()
        self.num_chunks = 0
        self._at_chunk: int | None = None

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Reset every connection, as a rebooted router would."""
        for writer in self._writers:
            writer.transport.abort()

    def cut_at_chunk(self, number: int) -> None:
        """Cut everything once so many more pieces have passed, in the middle of whatever that is."""
        self._at_chunk = self.num_chunks + number

    def refuse(self) -> None:
        """Cut, and break every new connection at once, until ``accept``."""
        self._is_refusing = True
        self._has_refused.clear()
        self.cut()

    async def has_refused(self) -> None:
        """Wait until somebody came since ``refuse``."""
        await self._has_refused.wait()

    def accept(self) -> None:
        """Pass connections on again."""
        self._is_refusing = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            self._has_refused.set()
            writer.transport.abort()
            return
        try:
            behind_reader, behind_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, behind_writer}
        self._writers |= pair
        try:
            await asyncio.gather(self._pass(reader, behind_writer), self._pass(behind_reader, writer))
        finally:
            self._writers -= pair

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                self.num_chunks += 1
                if self.num_chunks == self._at_chunk:
                    self.cut()
                writer.write(data)
                await writer.drain()
        writer.close()

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from service.client import Client, UnreachableError
from service.folders import token_file
from service.settings import Settings
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.noted import noted_spec
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, Installation
from tests.tcp_proxy import TcpProxy, proxied, proxied_in_thread, to_port
from tests.waiting import wait_for


@pytest.fixture
async def echo() -> AsyncIterator[TcpProxy]:
    """A proxy before a server that gives back what it gets."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with proxied(to_port(port)) as proxy:
        yield proxy
    server.close()


async def call(proxy: TcpProxy, data: bytes = b"hello") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    return reader, writer


async def first_byte(proxy: TcpProxy) -> bytes:
    reader, _ = await call(proxy)
    return await reader.readexactly(1)


@pytest.mark.anyio
async def test_what_is_not_spoilt_passes_through_and_an_end_is_handed_on(echo: TcpProxy) -> None:
    reader, writer = await call(echo)
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    assert echo.num_accepted == 1


@pytest.mark.anyio
async def test_a_cut_ends_in_order_and_a_reset_breaks(echo: TcpProxy) -> None:
    reader, writer = await call(echo)
    await reader.readexactly(5)
    echo.cut()
    assert await reader.read(-1) == b""
    writer.close()
    reader, _ = await call(echo)
    await reader.readexactly(5)
    echo.reset()
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)


@pytest.mark.anyio
async def test_refused_and_deaf_connections_bring_no_answer(echo: TcpProxy) -> None:
    echo.is_deaf = True
    reader, _ = await call(echo)
    while not echo.num_answers:
        await asyncio.sleep(0)
    echo.cut()
    assert await reader.read(-1) == b""
    echo.is_deaf, echo.is_refusing = False, True
    with pytest.raises(ConnectionError):
        await first_byte(echo)


@pytest.fixture
def spoilt(settings: Settings) -> Iterator[tuple[TcpProxy, asyncio.AbstractEventLoop]]:
    """A proxy before a real API."""
    with Installation(settings, names=(API,)) as installation:
        wait_for("the API's token", token_file(settings.home).exists)
        with proxied_in_thread(to_port(int(installation.url.rsplit(":", 1)[1]))) as made:
            yield made


@pytest.mark.faults
def test_a_submission_whose_answer_is_cut_off_again_and_again_makes_one_job(
    settings: Settings, spoilt: tuple[TcpProxy, asyncio.AbstractEventLoop]
) -> None:
    proxy, loop = spoilt
    proxy.is_deaf = True

    def cut(_: float) -> None:
        """In place of the client's pauses: from the third try on answers come through."""
        tries.append(proxy.num_answers)
        proxy.is_deaf = len(tries) < 2

    tries: list[int] = []
    watch = _Cutter(proxy, loop)
    with Client(f"http://127.0.0.1:{proxy.port}", token_file(settings.home).read_text().strip(), sleep=cut) as client:
        job = client.submit(noted_spec(1), key="once")
    watch.end()
    assert len(tries) == 2
    evidence = gather(settings)
    assert list(evidence.jobs) == [job["id"]]
    assert_nothing_found(judge(Case(evidence=evidence, accepted={"once": job["id"]})))


class _Cutter:
    """Cuts a deaf proxy's connections once their answer has been swallowed."""

    def __init__(self, proxy: TcpProxy, loop: asyncio.AbstractEventLoop) -> None:
        self._proxy, self._seen = proxy, 0
        self._task = asyncio.run_coroutine_threadsafe(self._run(), loop)

    async def _run(self) -> None:
        while True:
            if self._proxy.is_deaf and self._proxy.num_answers > self._seen:
                self._seen = self._proxy.num_answers
                self._proxy.cut()
            await asyncio.sleep(0.005)

    def end(self) -> None:
        self._task.cancel()


@pytest.mark.faults
def test_an_api_out_of_reach_is_told_and_found_again(
    settings: Settings, spoilt: tuple[TcpProxy, asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    proxy, _ = spoilt
    token = token_file(settings.home).read_text().strip()
    with Client(f"http://127.0.0.1:{proxy.port}", token, sleep=lambda _: None) as client:
        proxy.is_refusing = True
        with pytest.raises(UnreachableError):
            client.submit(noted_spec(1))
        proxy.is_refusing = False
        job = client.submit(noted_spec(2), key="again")
        assert client.job(job["id"])["state"] == "QUEUED"
    assert_nothing_found(judge(Case(evidence=gather(settings), accepted={"again": job["id"]})))

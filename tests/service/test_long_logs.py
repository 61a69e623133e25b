"""A log in large pieces: an answer is as large as was asked for, the answers join to the whole, and a cut is told."""

from __future__ import annotations

import httpx2
import pytest

from service.services import Services
from service.store.opening import Store
from tests.service.given import leader, log, placed, snapshot, view
from workers.plan import TimelineKind

pytestmark = pytest.mark.anyio

PIECE = b"x" * 19_999 + b"\n"
NUM_PIECES = 30


async def test_answers_are_bounded_by_bytes_and_join(store: Store) -> None:
    job = await placed(store, fence := await leader(store))
    chunks = tuple(log(PIECE, offset=n * len(PIECE)) for n in range(NUM_PIECES))
    await store.reconciler.fold(snapshot(job, logs=chunks, workers=()), fence)
    sizes, offset = [], 10  # inside of the first piece
    while pieces := await store.telemetry.logs(job.id, 0, offset, 50_000):
        sizes.append(len(pieces))
        offset = pieces[-1].end
    assert sizes == [3] * 10
    assert offset == NUM_PIECES * len(PIECE)
    tail = await store.telemetry.log_tail(job.id, 0, 1000, 50_000)
    assert [piece.position // len(PIECE) for piece in tail] == [27, 28, 29]


async def test_an_answer_may_have_many_small_pieces(store: Store) -> None:
    job = await placed(store, fence := await leader(store))
    chunks = tuple(log(b"%04d\n" % n, offset=5 * n) for n in range(500))
    await store.reconciler.fold(snapshot(job, logs=chunks, workers=()), fence)
    found = await store.telemetry.logs(job.id, None, 0, 10_000)
    assert b"".join(piece.data for piece in found) == b"".join(b"%04d\n" % n for n in range(500))
    tail = await store.telemetry.log_tail(job.id, None, 300, 10_000)
    assert (tail[0].position <= 5 * 200, tail[-1].data) == (True, b"0499\n")


async def test_what_is_beyond_the_limit_is_told_once_in_the_timeline_and_where_the_log_begins(
    client: httpx2.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.folding.MAX_LOG_BYTES", 5 * len(PIECE))
    job = await placed(services.store, fence := await leader(services.store))

    async def write(*numbers: int) -> list[str]:
        chunks = tuple(log(PIECE, worker=f"1.{n % 2}", offset=n // 2 * len(PIECE), rank=n % 2) for n in numbers)
        views = (view("1.0"), view("1.1", 1))
        await services.store.reconciler.fold(snapshot(job, logs=chunks, workers=views, cursor=10 * 32), fence)
        rows = await services.store.telemetry.timeline(job.id, 0, 10)
        assert all((row.kind, row.step) == (TimelineKind.LIMIT, 10) for row in rows)
        return [row.reason for row in rows]

    async def read(**where: int) -> tuple[str, int]:
        answer = await client.get(f"/api/v1/jobs/{job.id}/logs", params=where)
        return answer.text[:30].split("\n")[0], int(answer.headers["x-next-offset"])

    assert await write(*range(5)) == []
    assert (await read())[0].startswith("[rank 0] xxx")
    assert len(await write(5, 6)) == 1
    (told,) = await write(7)
    assert "longer than" in told
    left_out, end = 3 * len(PIECE), 8 * len(PIECE)
    assert await read() == (f"[{left_out} bytes left out]", end)
    assert await read(offset=len(PIECE)) == (f"[{left_out - len(PIECE)} bytes left out]", end)
    assert (await read(offset=left_out))[0].startswith("[rank 1] xxx")
    assert await read(tail=1000) == (f"[{left_out} bytes left out]", end)
    assert (await read(tail=2))[0].startswith("[rank 1] xxx")
    await write(*range(8, 19, 2))  # so that nothing of rank 1 is left
    text, end = await read(rank=1)
    assert "bytes left out" in text
    assert await read(rank=1, offset=end) == ("", end)

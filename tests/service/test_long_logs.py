"""A log in large pieces: an answer is as large as was asked for, and the answers join to the whole."""

from __future__ import annotations

import pytest

from service.store.opening import Store
from tests.service.given import leader, log, placed, snapshot

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

from __future__ import annotations

from dataclasses import replace

from workers.control.spans import MAX_SPANS, SpanBuffer
from workers.measures import RankSpan


def span(begin: int, num_rounds: int = 1, worker_id: str = "1.1") -> RankSpan:
    return RankSpan(
        worker_id=worker_id,
        rank=0,
        begin=begin,
        width_s=5,
        num_rounds=num_rounds,
        step_s=1.0,
        data_s=0.1,
        compute_s=0.5,
        exposed_s=0.2,
        optimizer_s=0.1,
        memory_bytes=10,
    )


def test_a_span_is_told_until_it_is_stored_and_again_when_it_has_grown() -> None:
    buffer = SpanBuffer()
    buffer.take([span(0), span(5)])
    sent = buffer.pending()
    assert sent == (span(0), span(5))
    buffer.take([span(0), span(5, 2)])
    buffer.stored(sent)
    assert buffer.pending() == (span(5, 2),)
    buffer.stored(buffer.pending())
    buffer.take([span(0), span(5, 2)])
    assert buffer.pending() == ()


def test_a_worker_under_another_rank_tells_another_span() -> None:
    buffer = SpanBuffer()
    buffer.take([span(0, 9)])
    buffer.stored(buffer.pending())
    moved = replace(span(0), rank=1)
    buffer.take([span(0, 9), moved])
    assert buffer.pending() == (moved,)


def test_a_service_that_is_away_costs_the_oldest_spans_only() -> None:
    buffer = SpanBuffer()
    for n in range(MAX_SPANS + 10):
        buffer.take([span(n)])
    assert [s.begin for s in buffer.pending()] == list(range(10, MAX_SPANS + 10))

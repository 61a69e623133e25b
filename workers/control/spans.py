"""Spans of ranks on their way to the store: each is told when it is news, until the store has it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from workers.measures import RankSpan

MAX_SPANS = 2_000
"""Kept for a service that is away; past it the oldest go: a heat map may have a gap."""


class SpanBuffer:
    """The newest form of every span that the store has not."""

    def __init__(self) -> None:
        self._fresh: dict[tuple[str, int, int], RankSpan] = {}
        self._stored: dict[tuple[str, int, int], RankSpan] = {}

    def take(self, spans: Iterable[RankSpan]) -> None:
        """Keep what is news: workers tell their newest spans again and again."""
        for span in spans:
            if self._stored.get(span.key) != span:
                self._fresh[span.key] = span
        _trim(self._fresh)

    def pending(self) -> tuple[RankSpan, ...]:
        """What the store should take next."""
        return tuple(self._fresh.values())

    def stored(self, spans: Iterable[RankSpan]) -> None:
        """Forget what the store has; a span that grew meanwhile is told again."""
        for span in spans:
            if self._fresh.get(span.key) == span:
                del self._fresh[span.key]
            self._stored.pop(span.key, None)
            self._stored[span.key] = span
        _trim(self._stored)


def _trim(spans: dict[tuple[str, int, int], RankSpan]) -> None:
    for key in list(spans)[: max(0, len(spans) - MAX_SPANS)]:
        del spans[key]

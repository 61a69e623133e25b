"""What jobs lost on which node, and what was said of nodes, in times that no jump of the clock touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from service.avoidance import HISTORY_S
from service.reconciler.ages import Ages
from service.records import Loss, NodeMark


class Incidents:
    """As one leader finds them, look after look; what it gives has the times that the clock of now would have shown."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._losses, self._marks = Ages[Loss](monotonic_s), Ages[NodeMark](monotonic_s)
        self._known: frozenset[Loss] = frozenset()
        self._strays: frozenset[Loss] = frozenset()
        self._asked_since: float | None = None

    def losses(self, found: Iterable[Loss], now: float) -> list[Loss]:
        """Those of ``HISTORY_S``, oldest first; ``found`` are those that say so by their times."""
        told = frozenset(found)
        self._strays = told & self._strays | {loss for loss in told - self._known if self._is_stray(loss, now)}
        self._asked_since = now - HISTORY_S
        ages = {loss: self._losses.age_s(loss, loss.time, now) for loss in self._known | told - self._strays}
        # One that was told before a jump is told no more after it, and one that is told may be long ago.
        self._known = frozenset(loss for loss, age_s in ages.items() if loss in told or age_s < HISTORY_S)
        self._losses.forget_unless(self._known.__contains__)
        timed = [replace(loss, time=now - age_s) for loss, age_s in ages.items() if age_s < HISTORY_S]
        return sorted(timed, key=lambda loss: loss.time)

    def marks(self, found: Mapping[str, NodeMark], now: float) -> dict[str, NodeMark]:
        """All words on nodes."""
        timed = {
            node_id: replace(mark, since=now - self._marks.age_s(mark, mark.since, now))
            for node_id, mark in found.items()
        }
        self._marks.forget_unless(lambda mark: found.get(mark.node_id) == mark)
        return timed

    def _is_stray(self, loss: Loss, now: float) -> bool:
        """Whether its time says nothing: one of a time to come that was there before this leader looked, or one that
        was past long ago and is found again because the clock went back.
        """
        return loss.time > now if self._asked_since is None else loss.time <= self._asked_since

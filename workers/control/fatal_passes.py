"""Forward passes that workers were killed in, and how many samples others may try after that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from workers.measures import LastPass

LEAST_DEATHS = 2
"""In a worker's first passes, which take longest and may meet with anything; one that came through some is enough."""

LEAST_BESIDE = 3
"""Where others on the node came through passes as large, as memory may do for them and not for one more beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """At most so many samples a pass, as ``worker_id`` died in one of ``size``.

    That is the smallest of the ``num_deaths`` on its node in passes larger than ``passed``, the largest that came
    through there, 0 for none. Where it is not larger, so many died in passes of up to as many samples, each larger than
    any that the dead one had come through itself.
    """

    most: int
    worker_id: str
    size: int
    passed: int
    num_deaths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FatalPasses:
    """``died``: workers whose processes ended without an order, and when that was heard, on the controller's clock.

    ``notes`` are what these left, with their nodes, ``passed`` the largest pass that any worker came through, by node.
    ``series`` are the workers lost in any way since the job last got further.
    """

    died: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, LastPass]] = field(default_factory=dict)
    passed: Mapping[str, int] = field(default_factory=dict)
    series: frozenset[str] = frozenset()

    def read(self, node_id: str, started_s: float, notes: Mapping[str, LastPass]) -> FatalPasses:
        """With what a worker that was started at ``started_s`` found on its node.

        What passed there, passed. Whose death was heard of later may have been alive, and not done, as it looked.
        """
        final = {i for i in notes if i not in self.notes and self.died.get(i, inf) <= started_s}
        passed = max((note.passed for note in notes.values()), default=0)
        if not final and passed <= self.passed.get(node_id, 0):
            return self
        found = {**self.notes, **{i: (node_id, notes[i]) for i in final}}
        return replace(self, notes=found, passed={**self.passed, node_id: max(passed, self.passed.get(node_id, 0))})

    @property
    def most(self) -> int | None:
        """The most samples that a pass may have by all this, None where nothing speaks against any."""
        return None if self.bound is None else self.bound.most

    @property
    def bound(self) -> Bound | None:
        """The lowest that a node asks for, None where none does."""
        found = (by(node_id) for node_id in self.passed for by in (self._beyond_all, self._beyond_their_own))
        return min((bound for bound in found if bound is not None), key=lambda bound: bound.most, default=None)

    @property
    def untried(self) -> Mapping[str, LastPass]:
        """Those in passes larger than any that workers came through on their node, by worker, the smallest first."""
        found = {i: note for i, (node_id, note) in self.notes.items() if note.size > self.passed[node_id]}
        return dict(sorted(found.items(), key=lambda item: item[1].size))

    def _beyond_all(self, node_id: str) -> Bound | None:
        """Half of the smallest that was fatal there, never less than what passed; None while that may be chance."""
        passed = self.passed[node_id]
        fatal = [(i, note.size) for i, note in self.untried.items() if self.notes[i][0] == node_id]
        if not fatal or (passed == 0 and len(fatal) < LEAST_DEATHS):
            return None
        worker_id, size = fatal[0]
        most = max(1, passed, size // 2)
        return Bound(most=most, worker_id=worker_id, size=size, passed=passed, num_deaths=len(fatal))

    def _beyond_their_own(self, node_id: str) -> Bound | None:
        """As ``_beyond_all`` by what the dead came through themselves, once it was fatal to so many."""
        died = [(note.size, note.passed, i) for i, (at, note) in self.notes.items() if at == node_id]
        fatal = sorted(each for each in died if each[0] > each[1])[:LEAST_BESIDE]
        if len(fatal) < LEAST_BESIDE:
            return None
        size, _, worker_id = fatal[-1]
        most = max(1, size // 2, *(passed for _, passed, _ in fatal))
        return Bound(most=most, worker_id=worker_id, size=size, passed=self.passed[node_id], num_deaths=LEAST_BESIDE)

"""When to ask whom: the rhythm of a controller's polls. Pure; times are its monotonic seconds."""

from __future__ import annotations

from collections.abc import Callable

from workers.control.decisions import ControllerState, WorkerFacts
from workers.plan import Plan, PlanId
from workers.status import Phase

STEADY_S = 0.25
BRISK_S = 0.02
RECORDS_S = 0.25
TURN_S = 0.1
"""So often a turn looks at what only time changes."""

LOOK_S = 0.5
FRESH_S = 1.0

HURRY_S = 5.0

_SHORT_PHASES = frozenset({Phase.RENDEZVOUS, Phase.SYNC})
"""Phases that usually end soon, so that it pays to ask again at once, for a while. That it waits a worker tells."""

_LAST_PHASES = frozenset({Phase.HELD, Phase.DONE})
"""Of training, for now: what is left of the records is all that is waited for."""


class Pace:
    """Steady while training goes on, brisk while a plan is on its way or a group is being formed."""

    def __init__(self) -> None:
        self._asked_s: dict[str, float] = {}
        self._offered: dict[str, PlanId | None] = {}
        self._told_s = float("-inf")
        self._looked_s = float("-inf")
        self._broken_s = 0.0

    def teller(self, state: ControllerState, now_s: float, *, is_awaited: bool = False) -> str | None:
        """The one worker to ask for records, when it is time or they are awaited: the longest there that answers.

        It has seen every round that any other could tell of, and more than a newcomer.
        """
        holders = [
            f
            for f in state.workers.values()
            if f.status is not None and f.status.round is not None and now_s - (f.heard_s or 0.0) < FRESH_S
        ]
        has_last = any(f.status is not None and f.status.phase in _LAST_PHASES and f.status.records for f in holders)
        if not is_awaited and now_s < self._told_s + (BRISK_S if has_last else RECORDS_S):
            return None
        oldest = min(holders, key=lambda f: (f.started_s, _age(f.worker_id)), default=None)
        return oldest.worker_id if oldest else None

    def is_due(self, state: ControllerState, facts: WorkerFacts, wants_records: bool, now_s: float) -> bool:
        """Whether to poll a worker now."""
        if facts.status is None and not state.is_adopting:
            # It has just been started, and tells itself when it is ready.
            self._asked_s.setdefault(facts.worker_id, now_s)
        asked_s = self._asked_s.get(facts.worker_id)
        offer = state.offers.get(facts.worker_id)
        offer_id = offer.id if offer else None
        if asked_s is None or wants_records or self._offered.get(facts.worker_id) != offer_id:
            return True
        return now_s - asked_s >= self._interval_s(state, facts, now_s) - 0.001

    def polled(self, worker_id: str, offer: Plan | None, wants_records: bool, now_s: float) -> None:
        """A poll was sent."""
        self._asked_s[worker_id] = now_s
        self._offered[worker_id] = offer.id if offer else None
        if wants_records:
            self._told_s = now_s

    def rest_s(self, state: ControllerState, can_poll: Callable[[str], bool], now_s: float) -> float:
        """How long until the next poll is due, if nothing happens before: an answer, say, that is under way."""
        if not state.is_broken:
            self._broken_s = now_s
        asked = [(self._asked_s.get(i, now_s), f) for i, f in state.workers.items() if can_poll(i)]
        due = [asked_s + self._interval_s(state, facts, now_s) for asked_s, facts in asked]
        return min(max(min(due, default=now_s + TURN_S) - now_s, BRISK_S / 4), TURN_S)

    def may_look(self, now_s: float) -> bool:
        """Whether it is time to look into storage again."""
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return True

    def _interval_s(self, state: ControllerState, facts: WorkerFacts, now_s: float) -> float:
        status, offer = facts.status, state.offers.get(facts.worker_id)
        if status is None:
            return STEADY_S
        is_halting = state.is_broken and now_s - self._broken_s < HURRY_S
        is_short = status.phase in _SHORT_PHASES and status.phase_age_s < HURRY_S
        is_on_its_way = offer is not None and (status.plan is None or offer.id != status.plan.id)
        return BRISK_S if is_halting or is_short or is_on_its_way else STEADY_S


def _age(worker_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in worker_id.split("."))

"""Workers out of reach: who is given up for lost, and when Ray's head must be asked first. Pure.

A controller that does not reach its workers may be the one that is cut off. Somebody else may have put a successor
in its place then, with whom the others train on; to leave them behind would let one job train twice. So nobody is
given up for being out of reach before Ray's head has answered, which also tells of a successor. Where a worker is
silent and no other answers, its node is asked: if that answers, it is not the network, and the worker hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from workers.control.decisions import AskHead, AskNode, ControllerState, Inputs, WorkerFacts

REFUSED_S = 2.0
"""No connection for so long while others answer: a node went down, and Ray may take a quarter of a minute to say so."""

REFUSED_BROKEN_S = 0.5
"""The same where a peer broke the group as well and everybody waits; Ray itself tells of a refusal a second late."""

ASK_S = 1.0
"""How often Ray's head is asked while somebody is out of reach."""

SHARE = 1 / 3
"""Of ``liveness_s``: so far into a silence, and later, an answer of somebody else tells that it is not our own link."""

MARGIN_S = 0.25
"""Of ``liveness_s``, for two turns and what lies between: one asks Ray's head, one has its answer and gives up."""

PATIENCE = 3
"""How many ``liveness_s`` are waited where nobody answers: more likely it is our own link than all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Absence:
    """One worker is ``words`` since ``since_s``, and given up once that was so for ``limit_s``.

    After half of ``least_s``, the least limit that may come to hold for it, Ray's head is asked, and the node where it
    is on ``doubted_node``: neither that nor another worker has answered.
    """

    since_s: float
    limit_s: float
    least_s: float
    words: str
    doubted_node: str | None = None

    @property
    def ends_s(self) -> float:
        return self.since_s + self.limit_s

    def is_over(self, head_seen_s: float, now_s: float) -> bool:
        return self.ends_s < now_s and self.ends_s <= head_seen_s

    def must_ask(self, head_seen_s: float, now_s: float) -> bool:
        if self.ends_s < now_s:
            return head_seen_s < self.ends_s
        return self.is_long(now_s) and now_s - head_seen_s > ASK_S

    def is_long(self, now_s: float) -> bool:
        return now_s - self.since_s > self.least_s / 2

    def why(self, now_s: float) -> str:
        return f"{self.words} for {now_s - self.since_s:.1f} s"


def lost(state: ControllerState, inputs: Inputs, now_s: float) -> Mapping[str, str]:
    """Workers to be given up now, each with why."""
    return {
        i: over[0].why(now_s)
        for i, found in _absences(state, inputs).items()
        if (over := [absence for absence in found if absence.is_over(inputs.head_seen_s or 0.0, now_s)])
    }


def questions(state: ControllerState, inputs: Inputs, now_s: float) -> tuple[AskHead | AskNode, ...]:
    """Who is to be asked: Ray's head in good time, so that a cut of our own is noticed before it is mended."""
    found = [absence for absences in _absences(state, inputs).values() for absence in absences]
    must_ask = any(absence.must_ask(inputs.head_seen_s or 0.0, now_s) for absence in found)
    doubted = {absence.doubted_node for absence in found if absence.is_long(now_s)}
    return (*([AskHead()] * must_ask), *(AskNode(node_id) for node_id in doubted if node_id is not None))


def _absences(state: ControllerState, inputs: Inputs) -> Mapping[str, list[_Absence]]:
    asked = [facts for facts in state.workers.values() if facts.kill is None]
    return {f.worker_id: [a for a in (_refusal(state, f), _silence(state, inputs, f)) if a is not None] for f in asked}


def _refusal(state: ControllerState, facts: WorkerFacts) -> _Absence | None:
    since_s = facts.refused_since_s
    if since_s is None:
        return None
    # Where nobody else answers either, it is more likely our own link.
    has_answered = any((f.heard_s or since_s) > since_s for i, f in state.workers.items() if i != facts.worker_id)
    if not has_answered:
        return None
    limit_s = REFUSED_BROKEN_S if state.is_broken else REFUSED_S
    return _Absence(since_s=since_s, limit_s=limit_s, least_s=limit_s, words="refused to be called")


def _silence(state: ControllerState, inputs: Inputs, facts: WorkerFacts) -> _Absence | None:
    since_s, liveness_s, node_id = facts.heard_s, state.settings.liveness_s, state.nodes.get(facts.worker_id)
    if since_s is None:
        return None
    # Whoever answers first after a cut of our own shortens the others' limit: by then the cut must have been noticed.
    least_s = liveness_s - min(MARGIN_S, liveness_s / 10)
    silence = _Absence(since_s=since_s, limit_s=PATIENCE * liveness_s, least_s=least_s, words="silent")
    others = [f.heard_s for i, f in state.workers.items() if i != facts.worker_id and f.heard_s is not None]
    told_s = since_s + SHARE * liveness_s
    if max(others, default=0.0) >= told_s:
        return replace(silence, limit_s=least_s)
    seen_s = inputs.nodes_seen_s.get(node_id or "", 0.0)
    if seen_s < told_s:
        return replace(silence, doubted_node=node_id)
    # When a network comes back its connections do so one after another.
    return replace(silence, limit_s=max(least_s, min(seen_s - since_s + SHARE * liveness_s, silence.limit_s)))

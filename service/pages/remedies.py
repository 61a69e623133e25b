"""What helps a job that waits, runs small or failed, as buttons: only what loses nothing or asks first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service import words
from service.documents import Document
from service.pages.job import is_of_sweep
from service.records import NodeView
from service.room import empty, fit, need_of
from service.states import JobState, Move, Verb, command
from workers.spec_parts import Resources

NUM_HOLDERS = 3
REASON = "the remedy that its page offered"

_RETRY_HELPS = frozenset(
    {"USER_ERROR", "NO_CAPACITY", "NODE_LOST", "CLUSTER_LOST", "STALLED", "BUDGET_EXCEEDED", "CONTROLLER_ERROR"}
)
"""Failures whose cause may lie outside of the spec: as it stands, the others would only fail again."""


def remedies_view(job: Document, holders: Sequence[Document]) -> list[dict[str, Any]]:
    """Buttons that each post a form; ``holders`` are jobs that hold workers now, for one that waits for them."""
    match job["state"]:
        case JobState.FAILED:
            return _again(job)
        case JobState.QUEUED:
            return [*_smaller(job), *(_make_room(holder, job["id"]) for holder in holders[:NUM_HOLDERS])]
        case JobState.RUNNING:
            return _content(job)
        case _:
            return []


def _again(job: Document) -> list[dict[str, Any]]:
    if job["reason"] not in _RETRY_HELPS or is_of_sweep(job):
        return []
    found = [_button("Go on from the last checkpoint", f"/jobs/{job['id']}/actions/retry")]
    if job["progress"]["samples"]:
        found.append(_button("Begin anew", f"/jobs/{job['id']}/actions/retry", ("from", "start")))
    return found


def _smaller(job: Document) -> list[dict[str, Any]]:
    """A size that is easier to place: the least of the range, or the spec's range where that begins lower."""
    low, pinned = job["workers"]["min"], job["observed"]["pinned"]
    found = []
    if pinned is not None and pinned > low:
        found.append(_size(job, f"Start with {words.plural(low, 'worker')}", ("workers", str(low))))
    if pinned is not None or low > job["spec"]["workers"]["min"]:
        found.append(_size(job, "Let the service choose the size", ("auto", "yes")))
    return found


def _content(job: Document) -> list[dict[str, Any]]:
    """While it runs with fewer than it was told to have."""
    current, pinned = job["workers"]["current"], job["observed"]["pinned"]
    if pinned is None or current >= pinned:
        return []
    found = [_size(job, "Let the service choose the size", ("auto", "yes"))]
    if current >= job["workers"]["min"]:
        found.insert(0, _size(job, f"Stay with {words.plural(current, 'worker')}", ("workers", str(current))))
    return found


def _make_room(holder: Document, back: str) -> dict[str, Any]:
    num = holder["workers"]["current"]
    word = f"Pause {holder['name']}, which holds {words.plural(num, 'worker')}"
    return _button(word, f"/jobs/{holder['id']}/actions/pause", ("back", back))


def could_fit(job: Document, nodes: Sequence[NodeView]) -> bool:
    """Whether its least number of workers would have room on these nodes if nothing else ran there."""
    need, least = need_of(Resources.model_validate(job["spec"]["resources"])), int(job["workers"]["min"])
    return fit(need, empty(nodes), least) >= least


def may_hold(job: Document) -> bool:
    """Whether pausing a job gives workers to others."""
    is_legal = isinstance(command(Verb.PAUSE, JobState(job["state"]), int(job["attempt"] or 0)), Move)
    return is_legal and bool(job["workers"]["current"])


def _size(job: Document, word: str, *fields: tuple[str, str]) -> dict[str, Any]:
    return _button(word, f"/jobs/{job['id']}/scale", ("reason", REASON), *fields)


def _button(word: str, action: str, *fields: tuple[str, str]) -> dict[str, Any]:
    return {"word": word, "action": action, "fields": fields}

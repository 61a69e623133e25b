"""What may come of two commands at once: the contract's table (part 4) as data, searched in every order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from service.states import JobState

_S = JobState

GOING = frozenset({_S.QUEUED, _S.STARTING, _S.RUNNING, _S.RECOVERING})
STOPPABLE = frozenset({_S.STARTING, _S.RUNNING, _S.RECOVERING})
ENDED = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED})
REST = ENDED | {_S.PAUSED}

UNDISTURBED: Mapping[JobState, tuple[JobState, ...]] = {
    _S.QUEUED: (_S.STARTING,),
    _S.STARTING: (_S.RUNNING,),
    _S.RUNNING: (_S.SUCCEEDED,),
    _S.RECOVERING: (_S.RUNNING,),
    _S.PAUSING: (_S.PAUSED, _S.SUCCEEDED),
    _S.CANCELLING: (_S.CANCELLED, _S.SUCCEEDED),
}
"""The reconciler's moves where there is room for all, nothing fails and nobody else wants anything."""


class End(NamedTuple):
    """How two commands were answered, and where the job rests; ``state`` is None of a deleted one."""

    first: int
    second: int
    state: JobState | None
    attempt: int


class _Moment(NamedTuple):
    state: JobState | None
    attempt: int
    first: int | None = None
    second: int | None = None


def legal_ends(state: JobState, attempt: int, first: str, second: str) -> set[End]:
    """Every end that some order of the two commands and the reconciler's moves leads to."""
    todo, seen = [_Moment(state, attempt)], set[_Moment]()
    while todo:
        moment = todo.pop()
        if moment not in seen:
            seen.add(moment)
            todo += _next(moment, first, second)
    return {
        End(m.first, m.second, m.state, m.attempt)
        for m in seen
        if m.first is not None and m.second is not None and (m.state is None or m.state in REST)
    }


def _next(moment: _Moment, first: str, second: str) -> list[_Moment]:
    found = []
    for to in UNDISTURBED.get(moment.state, ()) if moment.state else ():
        found.append(moment._replace(state=to, attempt=moment.attempt + (to is _S.STARTING)))
    if moment.first is None:
        status, to_state = answer(first, moment.state, moment.attempt)
        found.append(moment._replace(state=to_state, first=status))
    if moment.second is None:
        status, to_state = answer(second, moment.state, moment.attempt)
        found.append(moment._replace(state=to_state, second=status))
    return found


def answer(command: str, state: JobState | None, attempt: int) -> tuple[int, JobState | None]:
    """The status of the answer to a command, and the state that it leads to at once."""
    if state is None:
        return 404, None
    match command:
        case "delete":
            return (204, None) if state in ENDED else (409, state)
        case "scale":
            return (409 if state in ENDED or state is _S.CANCELLING else 200), state
        case "cancel":
            return _answer({_S.QUEUED, _S.PAUSED}, _S.CANCELLED, state) or (
                _answer(STOPPABLE | {_S.PAUSING}, _S.CANCELLING, state) or _repeated(state, _S.CANCELLED, _S.CANCELLING)
            )
        case "pause":
            return _answer({_S.QUEUED}, _S.PAUSED, state) or (
                _answer(STOPPABLE, _S.PAUSING, state) or _repeated(state, _S.PAUSED, _S.PAUSING)
            )
        case "resume":
            return _answer({_S.PAUSED}, _S.QUEUED, state) or _repeated(state, *GOING)
        case _:  # retry, from the last checkpoint or from the start
            was_tried = attempt > 1 or (attempt == 1 and state is _S.QUEUED)
            return _answer({_S.FAILED, _S.CANCELLED}, _S.QUEUED, state) or (
                _repeated(state, *GOING) if was_tried else (409, state)
            )


def _answer(sources: set[JobState] | frozenset[JobState], to: JobState, state: JobState) -> tuple[int, JobState] | None:
    return (200, to) if state in sources else None


def _repeated(state: JobState, *targets: JobState) -> tuple[int, JobState]:
    """A command in its target state is answered, and changes nothing."""
    return (200 if state in targets else 409), state

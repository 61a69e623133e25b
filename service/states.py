"""The states of a job and the moves between them, as data and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from workers.errors import Reason
from workers.status import RunGoal


class JobState(StrEnum):
    """Where a job is (contract, part 4)."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_S = JobState

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _S.QUEUED: frozenset({_S.STARTING, _S.PAUSED, _S.CANCELLED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.FAILED, _S.QUEUED, _S.PAUSING, _S.CANCELLING}),
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.RECOVERING, _S.QUEUED, _S.PAUSING, _S.CANCELLING}),
    _S.RECOVERING: frozenset({_S.RUNNING, _S.FAILED, _S.QUEUED, _S.PAUSING, _S.CANCELLING}),
    _S.PAUSING: frozenset({_S.PAUSED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLING}),
    _S.PAUSED: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.CANCELLING: frozenset({_S.CANCELLED, _S.SUCCEEDED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset({_S.QUEUED}),
    _S.CANCELLED: frozenset({_S.QUEUED}),
}

ENDED_STATES = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED})
"""Nothing runs and nothing will, unless the user asks for a retry."""

PLACED_STATES = frozenset({_S.STARTING, _S.RUNNING, _S.RECOVERING, _S.PAUSING, _S.CANCELLING})
"""An attempt is under way: there may be a controller and workers on the cluster."""

LIVE_STATES = PLACED_STATES | {_S.QUEUED}
"""What the reconciler has to look after."""


def is_allowed(state: JobState, to: JobState) -> bool:
    """Whether the table of transitions has this move."""
    return to in TRANSITIONS[state]


class Verb(StrEnum):
    """What a user may ask of a job."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A legal command: the state it leads to at once, its reason, and the goal from then on."""

    to: JobState
    goal: RunGoal
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Already:
    """The job is where the command leads; nothing changes."""


@dataclass(frozen=True, slots=True)
class Illegal:
    """The command makes no sense now; ``detail`` says why and what is possible."""

    detail: str


_MOVES: Mapping[Verb, Mapping[JobState, Move]] = {
    Verb.CANCEL: {
        **{
            s: Move(to=_S.CANCELLED, goal=RunGoal.CANCEL, reason=Reason.CANCELLED_BY_USER)
            for s in (_S.QUEUED, _S.PAUSED)
        },
        **{
            s: Move(to=_S.CANCELLING, goal=RunGoal.CANCEL, reason=Reason.CANCELLED_BY_USER)
            for s in (_S.STARTING, _S.RUNNING, _S.RECOVERING, _S.PAUSING)
        },
    },
    Verb.PAUSE: {
        _S.QUEUED: Move(to=_S.PAUSED, goal=RunGoal.PAUSE),
        **{s: Move(to=_S.PAUSING, goal=RunGoal.PAUSE) for s in (_S.STARTING, _S.RUNNING, _S.RECOVERING)},
    },
    Verb.RESUME: {_S.PAUSED: Move(to=_S.QUEUED, goal=RunGoal.RUN)},
    Verb.RETRY: {s: Move(to=_S.QUEUED, goal=RunGoal.RUN) for s in (_S.FAILED, _S.CANCELLED)},
}

_GOING = frozenset({_S.QUEUED, _S.STARTING, _S.RUNNING, _S.RECOVERING})
_TARGETS: Mapping[Verb, frozenset[JobState]] = {
    Verb.CANCEL: frozenset({_S.CANCELLING, _S.CANCELLED}),
    Verb.PAUSE: frozenset({_S.PAUSING, _S.PAUSED}),
    Verb.RESUME: _GOING,
    Verb.RETRY: _GOING,
}


def command(verb: Verb, state: JobState, attempt: int) -> Move | Already | Illegal:
    """What a user's command does to a job in ``state`` that has had ``attempt`` attempts so far.

    A command repeated in the state that it leads to changes nothing; since a resumed or retried job
    may be placed before the repeated call arrives, that is any state in which it goes on. A retry
    counts as repeated only where there was something to retry.
    """
    if move := _MOVES[verb].get(state):
        return move
    was_tried = attempt > 1 or (attempt == 1 and state is JobState.QUEUED)
    if state in _TARGETS[verb] and (verb is not Verb.RETRY or was_tried):
        return Already()
    sources = ", ".join(sorted(_MOVES[verb]))
    return Illegal(f"a job that is {state} cannot {verb}; this works from {sources}")

"""What a snapshot means for the job's state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.records import Explanation, Transition
from service.states import JobState
from workers.errors import Reason
from workers.status import JobSnapshot, Outcome, RunGoal, RunPhase

_S = JobState

_ENDS: Mapping[Outcome, Mapping[JobState, tuple[JobState, ...]]] = {
    Outcome.SUCCEEDED: {
        _S.STARTING: (_S.RUNNING, _S.SUCCEEDED),
        _S.RUNNING: (_S.SUCCEEDED,),
        _S.RECOVERING: (_S.RUNNING, _S.SUCCEEDED),
        _S.PAUSING: (_S.SUCCEEDED,),
        _S.CANCELLING: (_S.SUCCEEDED,),
    },
    Outcome.FAILED: {
        _S.STARTING: (_S.FAILED,),
        _S.RUNNING: (_S.FAILED,),
        _S.RECOVERING: (_S.FAILED,),
        _S.PAUSING: (_S.FAILED,),
        _S.CANCELLING: (_S.CANCELLED,),
    },
    # Saved and released: for the user's pause, else for the queue (the service stops, or makes room).
    Outcome.PAUSED: {
        _S.STARTING: (_S.QUEUED,),
        _S.RUNNING: (_S.QUEUED,),
        _S.RECOVERING: (_S.QUEUED,),
        _S.PAUSING: (_S.PAUSED,),
        _S.CANCELLING: (_S.CANCELLED,),
    },
    Outcome.REQUEUED: {
        _S.STARTING: (_S.QUEUED,),
        _S.RUNNING: (_S.RECOVERING, _S.QUEUED),
        _S.RECOVERING: (_S.QUEUED,),
        _S.PAUSING: (_S.PAUSED,),
        _S.CANCELLING: (_S.CANCELLED,),
    },
    Outcome.CANCELLED: {
        _S.STARTING: (_S.CANCELLING, _S.CANCELLED),
        _S.RUNNING: (_S.CANCELLING, _S.CANCELLED),
        _S.RECOVERING: (_S.CANCELLING, _S.CANCELLED),
        _S.PAUSING: (_S.CANCELLING, _S.CANCELLED),
        _S.CANCELLING: (_S.CANCELLED,),
    },
}

_GOING: Mapping[RunPhase, Mapping[JobState, tuple[JobState, ...]]] = {
    RunPhase.RUNNING: {_S.STARTING: (_S.RUNNING,), _S.RECOVERING: (_S.RUNNING,)},
    RunPhase.RECOVERING: {_S.RUNNING: (_S.RECOVERING,)},
}

STOPPED_SERVICE = Explanation(summary="The service was stopped; the job goes on by itself when the service is back.")


@dataclass(frozen=True, slots=True)
class Step:
    """One move to make, and what goes with it."""

    to: JobState
    change: Transition


def moves(state: JobState, snapshot: JobSnapshot) -> tuple[Step, ...]:
    """The moves from ``state`` that the snapshot asks for, in order; none while all is as it was.

    A job that has trained since the last look was RUNNING, whatever became of it by now.
    """
    if state is _S.STARTING and snapshot.has_trained:
        path = (_S.RUNNING, *_path(_S.RUNNING, snapshot))
    else:
        path = _path(state, snapshot)
    return tuple(Step(to, _change(to, snapshot)) for to in path)


def _path(state: JobState, snapshot: JobSnapshot) -> tuple[JobState, ...]:
    if snapshot.outcome is not None:
        return _ENDS[snapshot.outcome].get(state, ())
    return _GOING.get(snapshot.phase, {}).get(state, ())


def lost(state: JobState) -> tuple[Step, ...]:
    """The moves of a placed job of which nothing is left on the cluster."""
    cluster_lost = Transition(reason=Reason.CLUSTER_LOST)
    paths: Mapping[JobState, tuple[Step, ...]] = {
        _S.STARTING: (Step(_S.QUEUED, cluster_lost),),
        _S.RUNNING: (Step(_S.RECOVERING, cluster_lost), Step(_S.QUEUED, cluster_lost)),
        _S.RECOVERING: (Step(_S.QUEUED, cluster_lost),),
        _S.PAUSING: (Step(_S.PAUSED, Transition()),),
        _S.CANCELLING: (Step(_S.CANCELLED, Transition(reason=Reason.CANCELLED_BY_USER)),),
    }
    return paths.get(state, ())


def effective_goal(goal: RunGoal, *, is_leaving: bool) -> RunGoal:
    """What to direct a controller to; a service that stops saves what runs."""
    return RunGoal.PAUSE if is_leaving and goal is RunGoal.RUN else goal


def _change(to: JobState, snapshot: JobSnapshot) -> Transition:
    reason = snapshot.reason
    match to:
        case JobState.FAILED:
            told = Explanation(summary=f"It failed: {snapshot.detail}") if snapshot.detail else None
            return Transition(reason=reason or Reason.CONTROLLER_ERROR, explanation=told, failure=snapshot.failure)
        case JobState.RECOVERING:
            return Transition(reason=reason or Reason.NODE_LOST)
        case JobState.QUEUED if snapshot.outcome is Outcome.PAUSED:
            return Transition(reason=Reason.PREEMPTED, explanation=STOPPED_SERVICE)
        case JobState.QUEUED:
            return Transition(reason=reason, explanation=Explanation(summary=f"It waits again: {snapshot.detail}."))
        case JobState.CANCELLED | JobState.CANCELLING:
            return Transition(reason=Reason.CANCELLED_BY_USER)
        case _:
            return Transition()

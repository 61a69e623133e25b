"""Workers that fail or die before they are ready: counted, told, tried again later and later, given up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workers.control import membership, planning
from workers.control.decisions import ControllerState, Ending, Inputs, Note, WorkerFacts
from workers.errors import Failure, Reason
from workers.plan import TimelineKind
from workers.status import Outcome, TimelineRow

MAX_TRIES = 5
"""Starts in a row that told of a failure, before an attempt fails in which nobody else holds any state."""

MAX_DEATHS = 12
"""Likewise for starts that died: whoever kills processes may do so several times without a fault of the job."""

PATIENCE = 3
"""Tries in a row that follow each other quickly; where others train on, the next ones come much later."""

FIRST_PAUSE_S = 0.5
IDLE_PAUSE_S = 30.0
"""The longest pause while nobody trains."""

LONG_PAUSE_S = 60.0
MAX_PAUSE_S = 1800.0

MAX_HANGS = 2
"""Likewise for starts that hung, each of which takes all the time that a start may take."""

_DIED, _HUNG = "WorkerDied", "StalledError"
_MAX_TRIES = {_DIED: MAX_DEATHS, _HUNG: MAX_HANGS}


def observe(
    before: ControllerState, state: ControllerState, inputs: Inputs, now_s: float
) -> tuple[ControllerState, tuple[Note, ...]]:
    """Count those of ``before`` whose process was lost since, without ever having been ready."""
    counted = before.workers.keys() - {before.sharing.relief.stand_in}
    known = [before.workers[worker_id] for worker_id in inputs.lost if worker_id in counted]
    died = [facts.worker_id for facts in known if _was_starting(facts, inputs)]
    if not died:
        return state, ()
    # Who dies together died of one cause.
    state, note = count(state, inputs, _death(died[0], inputs.lost[died[0]], state.spec.entrypoint), now_s)
    return state, (note,)


def hung(state: ControllerState, verdicts: Mapping[str, str]) -> Mapping[str, str]:
    """Those of the workers to be killed that outlasted the time for a start, each with why."""
    seen = {i: facts.status for i, facts in state.workers.items()}
    return {
        i: why
        for i, why in verdicts.items()
        if why.startswith("stalled") and (status := seen[i]) is not None and membership.is_starting(status)
    }


def count_hung(
    state: ControllerState, inputs: Inputs, verdicts: Mapping[str, str], now_s: float
) -> tuple[ControllerState, tuple[Note, ...]]:
    """One more start has failed where workers hung in it; those that hung together did so of one cause."""
    if not verdicts:
        return state, ()
    worker_id, why = next(iter(verdicts.items()))
    failure = Failure(reason=Reason.STALLED, type=_HUNG, message=why, worker_id=worker_id)
    state, note = count(state, inputs, failure, now_s)
    return state, (note,)


def _was_starting(facts: WorkerFacts, inputs: Inputs) -> bool:
    status = inputs.statuses.get(facts.worker_id, facts.status)
    is_building = status is None or membership.is_starting(status)
    return is_building and facts.stopping_since_s is None and facts.kill is None


def _death(worker_id: str, why: str, entrypoint: str) -> Failure:
    told = {"ran out of memory": Reason.OUT_OF_MEMORY, "node died": Reason.NODE_LOST}
    reason = next((reason for words, reason in told.items() if words in why), None)
    message = f"{why} before it was ready"
    if reason is None:
        message += f", while {entrypoint} was imported and called: code of it may end the process, or crash it"
    return Failure(reason=reason or Reason.USER_ERROR, type=_DIED, message=message, worker_id=worker_id)


def count(state: ControllerState, inputs: Inputs, failure: Failure, now_s: float) -> tuple[ControllerState, Note]:
    """One more start has failed; what the timeline says of it."""
    state = replace(state, num_start_failures=state.num_start_failures + 1, start_failed_s=now_s, start_failure=failure)
    number, pause_s = state.num_start_failures, _pause_s(state)
    again = f"; {number} have failed in a row, the next is tried in {pause_s:.0f} s" if pause_s >= LONG_PAUSE_S else ""
    row = TimelineRow(
        key=f"start/{failure.worker_id}",
        kind=TimelineKind.FAILURE,
        time=inputs.unix_s,
        step=planning.progress_step(state),
        actor="controller",
        reason=f"worker {failure.worker_id} could not be started: {failure.message}{again}",
        cost_s=0.0,
        steps_lost=0,
    )
    return state, Note(row)


def may_start(state: ControllerState, now_s: float) -> bool:
    """Whether it is time for another try."""
    return state.num_start_failures == 0 or now_s - state.start_failed_s >= _pause_s(state)


def _pause_s(state: ControllerState) -> float:
    number = state.num_start_failures
    if number < PATIENCE or not membership.holders(state):
        return min(IDLE_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (number - 1))
    return min(MAX_PAUSE_S, LONG_PAUSE_S * 2.0 ** (number - PATIENCE))


def given_up(state: ControllerState, *, is_late: bool = False) -> Ending | None:
    """The end of an attempt in which start after start fails and nobody holds any state.

    ``is_late``: it has had the time that a start may take.
    """
    failure = state.start_failure
    if failure is None:
        return None
    allowed = PATIENCE if is_late else _MAX_TRIES.get(failure.type, MAX_TRIES)
    if state.num_start_failures < allowed:
        return None
    detail = f"{state.num_start_failures} starts of workers in a row failed (the last: {failure.message})"
    return Ending(outcome=Outcome.FAILED, reason=failure.reason, failure=failure, detail=detail)


def for_a_new_size(state: ControllerState, want: int) -> ControllerState:
    """Whoever asks for another size wants it tried now."""
    if state.filled_to == want:
        return state
    return replace(state, filled_to=want, num_start_failures=0)

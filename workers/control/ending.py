"""How an attempt ends: noticing that it should, saving where it must, letting everybody go. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from workers.control import membership, planning
from workers.control.decisions import Action, ControllerState, Ending, Inputs, Note, StopWorker
from workers.errors import Reason, described
from workers.plan import Cause, Goal, Plan, Switch, TimelineKind
from workers.status import Outcome, Phase, RunGoal, TimelineRow, WorkerStatus

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]

MAX_SAVES = 5
SAVE_PAUSE_S = 0.5
"""After a save that failed; twice as long each time."""

_FATAL = frozenset({Reason.DIVERGED, Reason.OUT_OF_MEMORY})


def noted(state: ControllerState, inputs: Inputs) -> ControllerState:
    """Set ``state.ending`` when the job is done, has failed, or is wished to end.

    An ending that is under way is only replaced by a more final one: a finish while saving, or a cancel.
    """
    if state.is_adopting:
        return state
    if _has_finished(state, inputs):
        if state.ending is None or state.ending.must_save:
            return replace(state, ending=Ending(outcome=Outcome.SUCCEEDED))
        return state
    wish = _wish(state, inputs)
    if wish is not None:
        return replace(state, ending=wish)
    if state.ending is None and (failed := _failed(state)) is not None:
        return replace(state, ending=failed)
    return state


def _has_finished(state: ControllerState, inputs: Inputs) -> bool:
    """Whether the last sample, evaluation and checkpoint are all in the store."""
    final = state.final_checkpoint
    if final is None and not state.workers and inputs.latest is not None and inputs.latest.is_final:
        final = inputs.latest if inputs.latest.attempt == state.key.attempt else None
    if final is None or final.path not in inputs.acked.checkpoints:
        return False
    # Where a lineage began at its end there is no round whose record could be stored.
    if inputs.acked.rounds < (final.lineage, final.round) and state.restored != (final.lineage, final.cursor):
        return False
    return not state.workers or any(s.phase is Phase.DONE for s in membership.holders(state).values())


def without_storage(state: ControllerState, error: OSError) -> ControllerState:
    """Nobody tells of a state, and where what was saved lies cannot be read: the job gives its place back meanwhile.

    Whoever entered a plan during the search may hold one by now, which is saved.
    """
    if state.ending is not None:
        return state
    detail = f"checkpoints cannot be looked for: {described(error)}"
    return replace(state, ending=Ending(outcome=Outcome.REQUEUED, detail=detail, must_save=True))


def is_complete(state: ControllerState) -> bool:
    """Whether nothing is left to compute: somebody is done and the final checkpoint is written."""
    done = any(s.phase is Phase.DONE for s in membership.holders(state).values())
    return done and state.final_checkpoint is not None


def _wish(state: ControllerState, inputs: Inputs) -> Ending | None:
    goal, now = inputs.direction.goal, state.ending
    may_cancel = now is None or now.must_save or now.outcome in (Outcome.PAUSED, Outcome.REQUEUED)
    if goal is RunGoal.CANCEL and may_cancel:
        return Ending(outcome=Outcome.CANCELLED, reason=Reason.CANCELLED_BY_USER, detail=inputs.direction.reason)
    if goal is RunGoal.PAUSE and now is None:
        return Ending(outcome=Outcome.PAUSED, detail=inputs.direction.reason, must_save=True)
    return None


def _failed(state: ControllerState) -> Ending | None:
    """A failure that no retry helps: at start-up, or one that would come again by itself.

    Who ran out of memory in mid-commit is replaced: the others may have had enough, and go on.
    """
    trains = bool(membership.holders(state)) or bool(membership.in_group(state))
    for status in membership.statuses(state):
        failure = status.failure
        if status.phase is not Phase.FAILED or failure is None:
            continue
        is_start_up = status.round is None and not trains and not state.has_trained
        is_fatal = failure.reason in _FATAL and status.round is not None and not failure.is_in_commit
        if is_start_up or is_fatal:
            return Ending(outcome=Outcome.FAILED, reason=failure.reason, failure=failure, detail=failure.message)
    return None


def carry_out(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Drive an ending on: save if it must, let all be told that leads there, stop every worker, then end."""
    end = state.ending
    if end is None:
        return None
    if state.saving_since_s is None:
        state = replace(state, saving_since_s=now_s)
    if end.must_save and not _is_saved(state):
        if membership.holders(state):
            return _save(state, inputs, now_s, end)
        if state.plan is not None and not state.is_broken:
            # Whoever entered the plan may have trained since it was last heard: ask before letting go.
            return replace(state, is_broken=True, why_broken="ending before any state was told"), ()
        end = _with_what_failed(state, end)
    elif (end.must_save or end.outcome is Outcome.FAILED) and not _is_told(state, inputs):
        saved_since_s = now_s if state.saved_since_s is None else state.saved_since_s
        if now_s - saved_since_s <= state.settings.stop_s:
            return replace(state, saved_since_s=saved_since_s), ()
    return _let_go(replace(state, ending=replace(end, must_save=False)), inputs, now_s)


def _is_saved(state: ControllerState) -> bool:
    plan = state.plan
    if plan is None or plan.goal is not Goal.SAVE_AND_STOP or state.is_broken:
        return False
    saver = membership.usable(state).get(plan.members[0].worker_id)
    return saver is not None and saver.phase is Phase.SAVED and saver.plan is not None and saver.plan.id == plan.id


def _is_told(state: ControllerState, inputs: Inputs) -> bool:
    """Whether the store has the record of every round that was trained: nobody tells it once the workers are gone."""
    return inputs.acked.rounds >= max((_trained(state, s) for s in membership.statuses(state)), default=(0, 0))


def _trained(state: ControllerState, status: WorkerStatus) -> tuple[int, int]:
    """The last round that a worker has a record of, by its lineage; one that was only restored has none."""
    if status.lineage is None or status.round is None:
        return (0, 0)
    is_restored = state.restored == (status.lineage, status.cursor)
    return (0, 0) if is_restored else (status.lineage, status.round)


def _save(state: ControllerState, inputs: Inputs, now_s: float, end: Ending) -> Turned:
    assert state.plan is not None
    assert state.saving_since_s is not None
    is_late = now_s - state.saving_since_s > state.settings.stop_s
    if not state.is_broken and membership.in_group(state):
        if state.plan.goal is Goal.TRAIN and membership.is_settled(state, state.plan):
            return _issue_save(state, inputs, end, is_agreed=True)
        if is_late and (state.plan.switch is Switch.AGREED or state.plan.goal is Goal.TRAIN):
            return replace(state, is_broken=True, why_broken="saving was not agreed in time"), ()
        return state, ()
    if state.plan.goal is Goal.SAVE_AND_STOP and not state.is_broken:
        return state, ()
    if not state.is_broken and membership.not_halted(state, state.plan):
        # Its plan may be on the way to some members, who would wait in the rendezvous for those that heard of the end.
        return replace(state, is_broken=True, why_broken="ending while a group was being formed"), ()
    if end.num_saves >= MAX_SAVES:
        return _save_no_more(state, end), ()
    if end.num_saves and now_s - end.save_at_s < SAVE_PAUSE_S * 2.0**end.num_saves:
        return state, ()
    state = replace(state, ending=replace(end, num_saves=end.num_saves + 1, save_at_s=now_s))
    return _issue_save(state, inputs, end, is_agreed=False)


def _save_no_more(state: ControllerState, end: Ending) -> ControllerState:
    """The state in memory is lost then, and it is said: only what was saved before is left."""
    why = next((s.stop.failure.message for s in membership.statuses(state) if s.stop and s.stop.failure), "")
    told = f"the last steps could not be saved in {end.num_saves} tries" + (f" ({why})" if why else "")
    return replace(state, ending=replace(_telling(end, told), must_save=False))


def _with_what_failed(state: ControllerState, end: Ending) -> Ending:
    """Nobody holds a state any more: where workers failed while the end was on its way, that is why."""
    failed = [s for s in membership.statuses(state) if s.phase is Phase.FAILED and s.failure is not None and s.round]
    why = next((s.failure.message for s in failed if s.failure is not None), "")
    return _telling(end, f"the last steps could not be saved ({why})") if why else end


def _telling(end: Ending, told: str) -> Ending:
    return replace(end, detail=f"{end.detail}; {told}" if end.detail else told)


def _issue_save(state: ControllerState, inputs: Inputs, end: Ending, *, is_agreed: bool) -> Turned:
    """Save by everybody's agreement, or at once by the survivor that is furthest ahead."""
    source = planning.member_source(state)
    assert source is not None
    assert state.plan is not None
    draft = planning.Draft(
        switch=Switch.AGREED if is_agreed else Switch.NOW,
        members=state.plan.worker_ids if is_agreed else (source.worker_id,),
        source=source,
        cause=Cause(kind=_kind(end), actor=_actor(end, inputs), reason=_words(end, inputs)),
        goal=Goal.SAVE_AND_STOP,
        is_new_group=not is_agreed,
    )
    base: Plan | None = state.plan if is_agreed else planning.base_plan(state, source)
    state, note = planning.issue(state, inputs, draft, base)
    return state, (note,)


def _kind(end: Ending) -> TimelineKind:
    return TimelineKind.FAILURE if end.outcome is Outcome.FAILED else TimelineKind.PAUSE


def _actor(end: Ending, inputs: Inputs) -> str:
    return inputs.direction.actor if end.outcome is Outcome.PAUSED else "controller"


def _words(end: Ending, inputs: Inputs) -> str:
    """Why the last commit is saved; the timeline tells it of the plan, and of the checkpoint that it brings."""
    what = {
        Outcome.PAUSED: "saving before the pause",
        Outcome.FAILED: "saving before the job fails",
        Outcome.REQUEUED: "saving before the job goes back to the queue",
    }[_told_outcome(end, inputs)]
    return f"{what}: {end.detail}" if end.detail else what


def _let_go(state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    assert state.ending is not None
    if not state.workers:
        return replace(state, outcome=state.ending.outcome), (Note(_end_row(state, inputs)),)
    workers, actions = dict(state.workers), []
    for worker_id, facts in state.workers.items():
        if facts.stopping_since_s is None:
            workers[worker_id] = replace(facts, stopping_since_s=now_s)
        if facts.kill is None:
            actions.append(StopWorker(worker_id))
    return replace(state, workers=workers), tuple(actions)


def _end_row(state: ControllerState, inputs: Inputs) -> TimelineRow:
    """A row for each way to end: an end that the next controller of the attempt comes to again is told once."""
    assert state.ending is not None
    outcome, old = _told_outcome(state.ending, inputs), state.plan.num_members if state.plan else 0
    words = {
        Outcome.SUCCEEDED: "all samples are trained on, the final evaluation and checkpoint are stored",
        Outcome.FAILED: "failed",
        Outcome.PAUSED: "everything is released",
        Outcome.CANCELLED: "cancelled",
        Outcome.REQUEUED: "everything is released",
    }[outcome]
    detail = f": {state.ending.detail}" if state.ending.detail else ""
    return TimelineRow(
        key=f"end/{outcome}",
        kind=TimelineKind.END,
        time=inputs.unix_s,
        step=planning.progress_step(state),
        actor=inputs.direction.actor if outcome is Outcome.CANCELLED else "controller",
        reason=words + detail,
        before={"workers": old},
        after={"workers": 0, "outcome": outcome.value},
        cost_s=0.0,
        steps_lost=0,
    )


def _told_outcome(end: Ending, inputs: Inputs) -> Outcome:
    """A pause that no user asked for leads back to the queue."""
    is_users = inputs.direction.actor == "user"
    return Outcome.REQUEUED if end.outcome is Outcome.PAUSED and not is_users else end.outcome

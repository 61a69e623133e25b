"""After a loss: who goes on, whose state holds, and what to do when nobody holds any. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from workers.control import killed, membership, planning, resize, starts
from workers.control.decisions import Action, ControllerState, Ending, Inputs, KillWorker, StopWorker
from workers.errors import Failure, Reason
from workers.plan import Cause, CheckpointSource, Plan, Switch, TimelineKind
from workers.run_settings import Donor
from workers.status import Outcome, Phase, StopCause, StopReport

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]

MAX_FORMED = 3
"""Generations that may fail without a commit before only the source goes on."""

MAX_LAUNCHES = 5
"""Starts without a survivor, none of which gets further than any before, until the attempt fails."""


UNREAD_PAUSE_S = 0.5
"""Before the same checkpoint is read again, which a worker could not read; twice as long for each start."""

HEALING_STEPS = 100
"""Steps of the spec further than where the user's code failed: then that failure no longer counts."""


def regroup(state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    """Everybody is out of the broken group: form the next one, hold, or start from a checkpoint."""
    state = _spurn(_count_user_failure(state))
    if state.ending is not None:
        return state, ()
    source = planning.member_source(state)
    if source is None:
        return launch(state, inputs, now_s) or (state, ())
    survivors = list(membership.holders(state))
    if state.num_formed > MAX_FORMED and len(survivors) > 1:
        return _keep_only(state, source.worker_id, now_s)
    want = resize.wanted(state, inputs)
    members = (survivors + membership.ready(state))[:want]
    if len(members) < state.spec.workers.min:
        return _hold(state, inputs, now_s)
    base = planning.base_plan(state, source)
    donor = _awaited_donor(state, base)
    if base is not None and donor is None:
        base = replace(base, lineage=membership.holders(state)[source.worker_id].lineage or base.lineage)
    draft = planning.Draft(
        switch=Switch.NOW,
        members=members,
        source=donor or source,
        cause=_cause(state, len(members)),
        is_new_lineage=donor is not None,
    )
    state, note = planning.issue(state, inputs, draft, base)
    return state, (note,)


def _spurn(state: ControllerState) -> ControllerState:
    """Give a donor up of which a worker said that its state cannot be had: the job goes on with its own."""
    plan = state.plan
    if plan is None or not any(report.cause is StopCause.DONOR for report in _reports(state)):
        return state
    return replace(state, spurned=max(state.spurned, plan.settings))


def _awaited_donor(state: ControllerState, base: Plan | None) -> Donor | None:
    """The donor of the plan in force where nobody holds its state yet: the group broke before it was taken over."""
    if base is None or not isinstance(base.source, Donor) or base.settings <= state.spurned:
        return None
    is_taken = any(s.lineage == base.lineage for s in membership.holders(state).values())
    return None if is_taken else base.source


def _reports(state: ControllerState) -> list[StopReport]:
    return [s.stop for s in membership.usable(state).values() if s.phase is Phase.STOPPED and s.stop is not None]


def _count_user_failure(state: ControllerState) -> ControllerState:
    """Count one failure a generation, however many ranks raised; end when there were too many."""
    for report in _reports(state):
        if report.cause is StopCause.USER and report.generation > state.counted_generation and report.failure:
            counted = replace(state, counted_generation=report.generation, num_formed=0)
            if _is_at_start_up(state, report.failure):
                return replace(counted, failure=report.failure, ending=_failed_start(report.failure))
            return _failed_once(counted, report.failure)
    return state


def _is_at_start_up(state: ControllerState, failure: Failure) -> bool:
    """Whether the first state itself could not be made: it would fail so again, and nothing is lost by ending."""
    return failure.round is None and failure.reason is Reason.USER_ERROR and not membership.holders(state)


def _failed_start(failure: Failure) -> Ending:
    return Ending(outcome=Outcome.FAILED, reason=failure.reason, failure=failure, detail=failure.message)


def _failed_once(state: ControllerState, failure: Failure) -> ControllerState:
    healing_samples = HEALING_STEPS * state.spec.batch.global_size
    state = replace(state, failures=state.failures.after(state.best_cursor, healing_samples), failure=failure)
    allowed, num = state.spec.retry.max_failures, state.failures.num
    if num <= allowed or state.ending is not None:
        return state
    times = "once" if num == 1 else f"{num} times, never {HEALING_STEPS} steps apart"
    detail = f"{failure.type}: {failure.message} (failed {times}; retry.max_failures={allowed})"
    end = Ending(outcome=Outcome.FAILED, reason=failure.reason, failure=failure, detail=detail, must_save=True)
    return replace(state, ending=end)


def count_stalls(state: ControllerState, verdicts: Mapping[str, str]) -> ControllerState:
    """A worker killed for a stall in its own phase counts as a failure of the user's code."""
    for worker_id, why in verdicts.items():
        if not why.startswith("stalled"):
            continue
        state = _failed_once(state, _stall(state, worker_id, why))
    return state


def _stall(state: ControllerState, worker_id: str, why: str) -> Failure:
    """A stall as a failure of the round that the worker was in, as far as it told."""
    status = state.workers[worker_id].status
    member = status.plan.member(worker_id) if status and status.plan else None
    return Failure(
        reason=Reason.STALLED,
        type="StalledError",
        message=why,
        worker_id=worker_id,
        rank=member.rank if member else None,
        round=status.round + 1 if status and status.round is not None else None,
    )


def drop_failed(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Let go of workers that cannot train: their start failed, or they broke while committing."""
    failed = [
        f.status
        for f in state.workers.values()
        if f.status is not None and f.status.phase is Phase.FAILED and f.stopping_since_s is None
    ]
    if not failed or state.ending is not None:
        return None
    workers, departed, notes = dict(state.workers), dict(state.departed), []
    for status in failed:
        workers[status.worker_id] = replace(workers[status.worker_id], stopping_since_s=now_s)
        departed[status.worker_id] = status.failure.message if status.failure else "failed"
        generation = state.plan.generation if state.plan else 0
        if status.round is None and status.failure is not None:
            failure = replace(status.failure, worker_id=status.worker_id)
            state, note = starts.count(state, inputs, failure, now_s)
            notes.append(note)
        elif status.failure is not None and generation > state.counted_generation:
            state = _failed_once(replace(state, counted_generation=generation), status.failure)
    stops = tuple(StopWorker(status.worker_id) for status in failed)
    return replace(state, workers=workers, departed=departed), (*stops, *notes)


def _keep_only(state: ControllerState, keeper: str, now_s: float) -> Turned:
    """Groups of these members fail again and again: whoever spoils them is not the source."""
    why = f"the group failed {state.num_formed} times without a commit"
    others = [i for i in membership.holders(state) if i != keeper]
    workers = {i: replace(f, kill=why, stopping_since_s=now_s) if i in others else f for i, f in state.workers.items()}
    state = replace(state, workers=workers, departed={**state.departed, **dict.fromkeys(others, why)}, num_formed=0)
    return state, tuple(KillWorker(i, why) for i in others)


def _hold(state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    """Fewer than ``min`` are left: keep their state, ask for replacements, give up after ``hold_s``."""
    since_s = now_s if state.short_since_s is None else state.short_since_s
    state = replace(state, short_since_s=since_s)
    if now_s - since_s <= state.settings.hold_s:
        return resize.fill(state, resize.wanted(state, inputs), now_s)
    detail = f"below workers.min={state.spec.workers.min} for {state.settings.hold_s:.0f} s"
    end = Ending(outcome=Outcome.REQUEUED, reason=Reason.NODE_LOST, detail=detail, must_save=True)
    return replace(state, ending=end), ()


def launch(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Start, or start again, from a checkpoint or afresh, once enough workers are ready."""
    if state.ending is not None or membership.holders(state) or membership.in_group(state):
        return None
    if state.plan is not None and not state.is_broken:
        return None
    if state.num_launches > MAX_LAUNCHES:
        return _give_up(state)
    if (end := starts.given_up(state)) is not None:
        return replace(state, ending=end), ()
    found, want = membership.ready(state)[: resize.wanted(state, inputs)], resize.wanted(state, inputs)
    enough = len(found) >= state.spec.workers.min
    if enough and state.ready_since_s is None:
        state = replace(state, ready_since_s=now_s)
    waited_s = 0.0 if state.ready_since_s is None else now_s - state.ready_since_s
    is_gathered = len(found) >= want or not membership.coming(state) or waited_s > state.settings.gather_s
    if not (enough and is_gathered):
        return _await_workers(state, inputs, now_s)
    if not inputs.has_looked:
        return state, ()  # who held the state was given up in this turn: in the next it is known what was saved
    source = planning.start_source(state, inputs)
    is_again = state.plan is None or source == state.plan.source or _unread(state) is None
    if waited_s < _pause_s(state, is_again=is_again):
        return state, ()
    draft = planning.Draft(
        switch=Switch.NOW, members=found, source=source, cause=_launch_cause(state, inputs, source), is_new_lineage=True
    )
    state, note = planning.issue(state, inputs, draft, None)
    # To find damage is no try: each time there is one checkpoint less.
    return replace(state, num_launches=state.num_launches + is_again), (note,)


def _unread(state: ControllerState) -> Failure | None:
    """Why the checkpoint of the latest plan could not be read; None where nobody says so."""
    generation = state.plan.generation if state.plan else 0
    stops = [r for r in _reports(state) if r.cause is StopCause.CHECKPOINT and r.generation == generation]
    return next((report.failure for report in stops if report.failure is not None), None)


def _pause_s(state: ControllerState, *, is_again: bool) -> float:
    """A checkpoint that was found whole since a worker could not read it: storage may be away for a moment."""
    return UNREAD_PAUSE_S * 2.0**state.num_launches if is_again and _unread(state) is not None else 0.0


def _await_workers(state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    """Ask for what is missing; give the place back when not even ``min`` find one in time."""
    num_placed = len(membership.usable(state))
    since_s = now_s if state.short_since_s is None else state.short_since_s
    bound_s = state.settings.hold_s if state.has_trained else state.settings.place_s
    if num_placed >= state.spec.workers.min:
        since_s = now_s
    elif now_s - since_s > bound_s:
        if (end := starts.given_up(state, is_late=True)) is not None:
            return replace(state, ending=end), ()
        detail = f"{num_placed} of at least {state.spec.workers.min} workers found a place within {bound_s:.0f} s"
        return replace(state, ending=Ending(outcome=Outcome.REQUEUED, reason=Reason.NO_CAPACITY, detail=detail)), ()
    return resize.fill(replace(state, short_since_s=since_s), resize.wanted(state, inputs), now_s)


def _give_up(state: ControllerState) -> Turned:
    told = _unread(state) or killed.failure(state)
    lost = "; ".join(sorted(set(state.departed.values()))) or "no worker told why"
    detail = f"all workers were lost {state.num_launches} times without getting further ({lost})"
    if told is not None:
        detail = f"{told.message} (started {state.num_launches} times without getting further)"
    failure = told or state.failure or Failure(reason=Reason.USER_ERROR, type="WorkersLost", message=detail)
    end = Ending(outcome=Outcome.FAILED, reason=failure.reason, failure=failure, detail=detail)
    return replace(state, ending=end), ()


def _launch_cause(state: ControllerState, inputs: Inputs, source: object) -> Cause:
    is_again = isinstance(source, CheckpointSource | Donor)
    unread, order = _unread(state), inputs.direction.settings
    if isinstance(source, Donor) and order is not None and unread is None and not state.has_trained:
        return Cause(kind=TimelineKind.RESTORE, actor=order.actor, reason=order.reason)
    kind = TimelineKind.RESTORE if is_again or unread or state.has_trained else TimelineKind.START
    match source:
        case CheckpointSource(step=step, global_batch=batch):
            origin = f"from the checkpoint of step {step}"
            origin += f", with the {batch} samples a step that it had come to" if batch else ""
        case Donor(job_id=job_id, cursor=cursor):
            origin = f"from the state of job {job_id} at {cursor:,} samples"
        case _:
            origin = _origin(state)
    why = f" after all workers were lost ({_lost_words(state)})" if state.has_trained else ""
    if unread is not None:
        why = f", as the state to begin from could not be read ({unread.message})"
    return Cause(kind=kind, actor="controller", reason=f"training {origin}{why}")


def _origin(state: ControllerState) -> str:
    """Where a start without a checkpoint of its own begins."""
    given = state.spec.init_from
    if given is None:
        return "from the start"
    what = "from the whole state" if given.state == "all" else "from the start, with the weights"
    step = "of the latest checkpoint" if given.step == "latest" else f"of the checkpoint of step {given.step}"
    return f"{what} {step} of job {given.job}"


def _cause(state: ControllerState, num_members: int) -> Cause:
    """What the timeline says about a group that follows a broken one."""
    failure = state.failure
    user = [r for r in _reports(state) if r.cause is StopCause.USER]
    memory = [r for r in _reports(state) if r.cause is StopCause.MEMORY]
    if user and failure is not None:
        reason = f"{failure.type}: {failure.message}; trying the same round again"
        count = f" (failure {state.failures.num}, {state.spec.retry.max_failures} are allowed)"
        return Cause(kind=TimelineKind.FAILURE, actor="controller", reason=reason + count + _besides(state))
    if memory:
        told = next((r.failure.message for r in memory if r.failure is not None), "memory ran out in mid-exchange")
        reason = f"on a worker {told}"
        return Cause(kind=TimelineKind.BATCH, actor="controller", reason=reason + _besides(state))
    if spurned := [r.failure.message for r in _reports(state) if r.cause is StopCause.DONOR and r.failure]:
        reason = f"{spurned[0]}; the job trains on with its own"
        return Cause(kind=TimelineKind.RESTORE, actor="controller", reason=reason + _besides(state))
    if _lost(state):
        reason = f"{_lost_words(state)}; went on with {num_members}"
        return Cause(kind=TimelineKind.WORKER_LOST, actor="controller", reason=reason)
    return Cause(kind=TimelineKind.FAILURE, actor="controller", reason=f"{state.why_broken}; formed the group anew")


def _lost(state: ControllerState) -> dict[str, str]:
    """Members that are gone and why, also those that went while no controller was there."""
    members = state.plan.worker_ids if state.plan else ()
    return {**dict.fromkeys((i for i in members if i not in state.workers), "gone"), **state.departed}


def _besides(state: ControllerState) -> str:
    """A loss beside another cause; one row tells both."""
    return f"; besides, {_lost_words(state)}" if _lost(state) else ""


def _lost_words(state: ControllerState) -> str:
    return "; ".join(f"worker {i}: {why}" for i, why in sorted(_lost(state).items())) or state.why_broken

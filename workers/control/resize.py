"""Planned changes of size: asking for workers, naming newcomers, letting leavers go. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from workers.control import membership, planning, sizing, starts
from workers.control.decisions import Action, ControllerState, Inputs, StartWorker, StopWorker, WorkerFacts
from workers.plan import Cause, Goal, Switch, TimelineKind
from workers.status import Phase, StopCause, WorkerStatus

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]


def wanted(state: ControllerState, inputs: Inputs) -> int:
    """The size to reach, within the spec's range; more workers than samples a step would have nothing to do."""
    wish, spec = inputs.direction.settings, state.spec
    batches = [
        state.plan.global_batch if state.plan else spec.batch.global_size,
        *([wish.global_batch] if wish else []),
    ]
    largest = min(spec.workers.max, *batches)
    return max(state.spec.workers.min, min(inputs.direction.num_workers, largest))


def fill(state: ControllerState, want: int, now_s: float) -> Turned:
    """Start as many workers as are missing to ``want``, where starts do not fail again and again."""
    state = starts.for_a_new_size(state, want)
    if not starts.may_start(state, now_s):
        return state, ()
    alive = set(membership.usable(state)) | set(membership.coming(state))
    leaving = {i for i, s in membership.usable(state).items() if s.stop and s.stop.cause is StopCause.REMOVED}
    num_missing = want - len(alive - leaving)
    if num_missing <= 0:
        return state, ()
    workers, actions, n = dict(state.workers), [], state.next_worker
    for _ in range(num_missing):
        worker_id = f"{state.term}.{n}"
        workers[worker_id] = WorkerFacts(worker_id=worker_id, started_s=now_s, avoids=state.avoided)
        actions.append(StartWorker(worker_id, state.avoided))
        n += 1
    return replace(state, workers=workers, next_worker=n), tuple(actions)


def settle(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """While the latest plan is not yet everybody's, change nothing; after its first commit, leavers may go."""
    plan = state.plan
    if plan is None:
        return None
    # In force and without its state yet is a group that still takes it over.
    is_whole = membership.is_settled(state, plan) and membership.has_taken_over(state, plan)
    if not (is_whole and membership.holders(state)):
        return state, ()
    if state.settled_at is None:
        reached = plan.num_members if plan.num_members == wanted(state, inputs) else state.reached
        state = replace(state, settled_at=state.furthest, has_trained=True, reached=reached, num_start_failures=0)
        return state, ()
    if state.furthest <= state.settled_at:
        return None
    leavers = [i for i, s in membership.usable(state).items() if plan.member(i) is None and _has_left(s)]
    return stop(state, leavers, now_s) if leavers else None


def _has_left(status: WorkerStatus) -> bool:
    """Whether a worker was taken out of its group, or left one that broke and was not named again.

    Either holds state that grows old: nobody must go on from it later.
    """
    is_removed = status.stop is not None and status.stop.cause is StopCause.REMOVED
    return status.phase is Phase.STOPPED and (is_removed or status.round is not None)


def stop(state: ControllerState, worker_ids: list[str], now_s: float) -> Turned:
    """End workers that no plan in force names."""
    workers = {i: replace(f, stopping_since_s=now_s) if i in worker_ids else f for i, f in state.workers.items()}
    return replace(state, workers=workers), tuple(StopWorker(i) for i in worker_ids)


def resize(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Bring the group to the wanted size: one plan for whoever is ready, or for those who stay."""
    plan = state.plan
    if plan is None or plan.goal is not Goal.TRAIN or any(s.is_finished for s in membership.statuses(state)):
        return None
    want, stand_in = wanted(state, inputs), state.sharing.relief.stand_in
    if plan.num_members > want:
        return _change(state, inputs, plan.worker_ids[:want])
    newcomers = [i for i in membership.ready(state) if plan.member(i) is None and i != stand_in]
    if newcomers and plan.num_members < want:
        return _change(state, inputs, (*plan.worker_ids, *newcomers)[:want])
    outsiders = [*newcomers, *(i for i in membership.coming(state) if i != stand_in)]
    surplus = plan.num_members + len(outsiders) - want
    if surplus > 0:
        return stop(state, sorted(outsiders, reverse=True)[:surplus], now_s)
    filled, actions = fill(state, want, now_s)
    return (filled, actions) if actions or filled is not state else None


def _change(state: ControllerState, inputs: Inputs, members: tuple[str, ...]) -> Turned:
    plan, source = state.plan, planning.member_source(state)
    assert plan is not None
    if source is None:
        return state, ()
    is_replacement = len(members) > plan.num_members and state.reached >= len(members)
    cause = (
        Cause(kind=TimelineKind.WORKER_JOINED, actor="controller", reason="a replacement for a lost worker is ready")
        if is_replacement
        else sizing.cause(state.sizing, inputs.direction, len(members))
    )
    draft = planning.Draft(switch=Switch.AGREED, members=members, source=source, cause=cause)
    state, note = planning.issue(state, inputs, draft, plan)
    return state, (note,)

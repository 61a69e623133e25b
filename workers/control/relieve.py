"""A worker that no share is small enough for gets a stand-in, if a node has room for one right now. Pure.

On another node if there is one: its own may be what is slow, so that there one is tried once only. The worker trains on
until the stand-in is ready. What the stand-in is worth the next review of the parts finds out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

from workers.control import membership, planning, resize, sharing
from workers.control.decisions import Action, ControllerState, Inputs, Note, StartWorker, WorkerFacts
from workers.control.sharing import Relief
from workers.plan import Cause, Goal, Plan, Switch, TimelineKind
from workers.status import Phase, TimelineRow

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]

MOST = 3
"""Stand-ins that got a place in vain, a controller: whoever is slow on every node is slow by its work."""

PLACE_S = 30.0
"""A stand-in that has no place by then lost the room it was promised to somebody else."""


def begin(state: ControllerState, inputs: Inputs, slow: str, now_s: float) -> Turned:
    """Start a stand-in for ``slow``, unless the group is about to change anyway."""
    known, plan, node_id = state.sharing.relief, state.plan, state.nodes.get(slow)
    is_apt = plan is not None and plan.num_members == resize.wanted(state, inputs) == len(state.workers)
    if not is_apt or known.stand_in or known.num_vain >= MOST or not node_id:
        return state, ()
    relief = replace(known, slow=slow, is_beside=False, nodes=known.nodes | {node_id})
    return _asked(state, relief, state.avoided | relief.nodes, now_s)


def in_vain(known: Relief, slow: Collection[str]) -> Relief:
    """With those who came in the place of others and are ``slow`` as well counted, each once."""
    came = known.came.intersection(slow)
    return replace(known, num_vain=known.num_vain + len(came), came=known.came - came)


def _asked(state: ControllerState, relief: Relief, avoids: frozenset[str], now_s: float) -> Turned:
    worker_id = f"{state.term}.{state.next_worker}"
    facts = WorkerFacts(worker_id=worker_id, started_s=now_s, avoids=avoids)
    state = replace(state, workers={**state.workers, worker_id: facts}, next_worker=state.next_worker + 1)
    return _knowing(state, replace(relief, stand_in=worker_id)), (StartWorker(worker_id, avoids, must_fit=True),)


def observe(before: ControllerState, state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    """Hear of a stand-in that came to nothing: another try, or a word to the job's owner, once for each who is slow.

    It is no failure of the job's: nobody had asked for it.
    """
    known = state.sharing.relief
    if not known.stand_in:
        return state, ()
    facts = state.workers.get(known.stand_in)
    if (why := inputs.lost.get(known.stand_in)) is not None:
        old = before.workers.get(known.stand_in)
        if old is not None and old.heard_s is not None:
            return _unrelieved(state, inputs, why, is_placed=True)
        return _beside(state, inputs, now_s) or _unrelieved(state, inputs, why, is_placed=False)
    if facts is None or facts.status is None or facts.status.phase is not Phase.FAILED:
        return state, ()
    why = facts.status.failure.message if facts.status.failure else "it could not be made ready"
    state, notes = _unrelieved(state, inputs, why, is_placed=True)
    state, stops = resize.stop(state, [known.stand_in], now_s)
    return state, (*notes, *stops)


def _beside(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Where no other node has room, ask for a stand-in on the slow one's own; None where that was tried."""
    known, plan = state.sharing.relief, state.plan
    here = state.nodes.get(known.slow)
    if known.is_beside or here is None or here in known.tried | state.avoided:
        return None
    if plan is None or not _is_needed(state, inputs, plan, known):
        return None
    return _asked(state, replace(known, is_beside=True), state.avoided | (known.nodes - {here}), now_s)


def _unrelieved(state: ControllerState, inputs: Inputs, why: str, *, is_placed: bool) -> Turned:
    known = state.sharing.relief
    ended = replace(_placed(state, known), num_vain=known.num_vain + 1) if is_placed else _ended(known)
    state = _knowing(state, replace(ended, told=known.told | {known.slow}))
    if known.slow in known.told:
        return state, ()
    if state.sharing.told - state.sharing.relief.told:  # another one may be relieved: the next look is at once
        state = replace(state, sharing=replace(state.sharing, reviewed_s=float("-inf")))
    where = "" if known.is_beside else " on another node"
    row = TimelineRow(
        key=f"relief/{state.term}/{known.stand_in}",
        kind=TimelineKind.LIMIT,
        time=inputs.unix_s,
        step=planning.progress_step(state),
        actor=sharing.ACTOR,
        reason=f"worker {known.slow} stays: no other could take its place{where} ({why})",
        after={"worker_id": known.slow, "node_id": state.nodes.get(known.slow, "")},
        cost_s=0.0,
        steps_lost=0,
    )
    return state, (Note(row),)


def relieve(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Let the stand-in take the place once it is ready; a group that changes otherwise needs none."""
    known, plan = state.sharing.relief, state.plan
    if not known.stand_in:
        return None
    facts = state.workers.get(known.stand_in)
    if plan is None or facts is None or not _is_needed(state, inputs, plan, known):
        return _knowing(state, _ended(known)), ()
    if known.stand_in in membership.ready(state):
        return _replaced(state, inputs, plan, known)
    if facts.heard_s is None and now_s - facts.started_s > PLACE_S:
        state, notes = _unrelieved(state, inputs, f"it had no place within {PLACE_S:.0f} s", is_placed=False)
        state, stops = resize.stop(state, [known.stand_in], now_s)
        return state, (*notes, *stops)
    return None


def _is_needed(state: ControllerState, inputs: Inputs, plan: Plan, known: Relief) -> bool:
    ids, is_over = plan.worker_ids, any(s.is_finished for s in membership.statuses(state))
    is_same = known.slow in ids and known.stand_in not in ids and len(ids) == resize.wanted(state, inputs)
    return is_same and plan.goal is Goal.TRAIN and not is_over


def _replaced(state: ControllerState, inputs: Inputs, plan: Plan, known: Relief) -> Turned:
    source = planning.member_source(state)
    if source is None:
        return state, ()
    here, there = (state.nodes.get(worker_id, "") for worker_id in (known.slow, known.stand_in))
    reason = (
        f"worker {known.stand_in} on node {there} takes the place of worker {known.slow} on node {here}, "
        "which held the others up whatever its part"
    )
    members = tuple(known.stand_in if worker_id == known.slow else worker_id for worker_id in plan.worker_ids)
    draft = planning.Draft(
        switch=Switch.AGREED,
        members=members,
        source=source,
        cause=Cause(kind=TimelineKind.WORKER_JOINED, actor=sharing.ACTOR, reason=reason),
        parts=dict.fromkeys(members, 1),
    )
    state, note = planning.issue(state, inputs, draft, plan)
    return _knowing(state, replace(_placed(state, known), came=known.came | {known.stand_in})), (note,)


def _placed(state: ControllerState, known: Relief) -> Relief:
    """After a stand-in that had got a place, whatever came of it."""
    tried = known.tried | {state.nodes.get(known.slow, "")} if known.is_beside else known.tried
    return replace(_ended(known), tried=tried)


def _ended(known: Relief) -> Relief:
    return replace(known, slow="", stand_in="", is_beside=False)


def _knowing(state: ControllerState, relief: Relief) -> ControllerState:
    return replace(state, sharing=replace(state.sharing, relief=relief))

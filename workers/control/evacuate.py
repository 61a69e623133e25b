"""Moving workers off nodes that are to be emptied: others take their place first, if there is room. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from workers.control import membership, planning, resize
from workers.control.decisions import Action, ControllerState, Ending, Inputs
from workers.errors import Reason
from workers.plan import Cause, Goal, Plan, Switch, TimelineKind
from workers.status import AvoidedNode, Outcome

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]

AHEAD_S = 15.0
"""So long before its node goes a worker stops waiting for another: its step has to end, and may have to be saved."""


def evacuate(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Let nobody stay on a node to avoid.

    Members there train on until as many are ready elsewhere. After ``evacuate_s``, and in any case before their
    node goes, the group goes on with those elsewhere, or the attempt saves and gives its place back where they are
    fewer than ``workers.min``.
    """
    plan = state.plan
    if plan is None or plan.goal is not Goal.TRAIN or any(s.is_finished for s in membership.statuses(state)):
        return None
    leaving = [i for i in plan.worker_ids if state.nodes.get(i) in state.avoided]
    if misplaced := _misplaced(state, plan):
        return resize.stop(state, misplaced, now_s)
    if not leaving:
        return None if state.evacuating_since_s is None else (replace(state, evacuating_since_s=None), ())
    since_s = now_s if state.evacuating_since_s is None else state.evacuating_since_s
    state = replace(state, evacuating_since_s=since_s)
    want = resize.wanted(state, inputs)
    staying = [i for i in plan.worker_ids if i not in leaving]
    newcomers = [i for i in membership.ready(state) if plan.member(i) is None]
    members = (*staying, *newcomers)[:want]
    is_late = now_s - since_s > state.settings.evacuate_s or _goes_soon(state, inputs, leaving)
    if len(members) >= min(want, plan.num_members) or (is_late and len(members) >= state.spec.workers.min):
        return _move(state, inputs, members, _told(state, inputs, leaving))
    if is_late:
        return _give_back(state, _told(state, inputs, leaving), waited_s=now_s - since_s), ()
    return resize.fill(state, want + len(leaving), now_s)


def _misplaced(state: ControllerState, plan: Plan) -> list[str]:
    """Workers that no plan names yet, on a node to avoid or waiting for a place away from one that is so no longer."""
    found = []
    for worker_id, facts in state.workers.items():
        if facts.stopping_since_s is not None or facts.kill is not None or plan.member(worker_id) is not None:
            continue
        holds_state = facts.status is not None and facts.status.round is not None
        is_there = state.nodes.get(worker_id) in state.avoided
        is_shy = facts.heard_s is None and not facts.avoids <= state.avoided | state.sharing.relief.nodes
        if (is_there and not holds_state) or is_shy:
            found.append(worker_id)
    return found


def _goes_soon(state: ControllerState, inputs: Inputs, leaving: list[str]) -> bool:
    nodes = {state.nodes[worker_id] for worker_id in leaving}
    ends = [node.goes_at for node in inputs.direction.avoid if node.node_id in nodes and node.goes_at is not None]
    return any(goes_at - inputs.unix_s <= AHEAD_S for goes_at in ends)


def _told(state: ControllerState, inputs: Inputs, leaving: list[str]) -> AvoidedNode:
    """The first of the nodes that are being left."""
    nodes = {state.nodes[worker_id] for worker_id in leaving}
    return next(node for node in inputs.direction.avoid if node.node_id in nodes)


def _move(state: ControllerState, inputs: Inputs, members: tuple[str, ...], node: AvoidedNode) -> Turned:
    source = planning.member_source(state)
    if source is None:
        return state, ()
    cause = Cause(kind=TimelineKind.RESIZE, actor=node.actor, reason=node.reason)
    draft = planning.Draft(switch=Switch.AGREED, members=members, source=source, cause=cause)
    state, note = planning.issue(state, inputs, draft, state.plan)
    return replace(state, evacuating_since_s=None), (note,)


def _give_back(state: ControllerState, node: AvoidedNode, *, waited_s: float) -> ControllerState:
    detail = (
        f"{node.reason}, and within {waited_s:.0f} s no other place was found for workers.min={state.spec.workers.min}"
    )
    return replace(
        state, ending=Ending(outcome=Outcome.REQUEUED, reason=Reason.PREEMPTED, detail=detail, must_save=True)
    )

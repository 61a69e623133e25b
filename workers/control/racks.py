"""What a group found of its racks: where it is known from, and what of it must be told. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from workers.control import membership, planning
from workers.control.decisions import Action, ControllerState, Inputs, Note
from workers.exchange_options import used_over
from workers.plan import Plan, TimelineKind
from workers.rack_words import dispute_in_words, in_words, one_level_in_words
from workers.racks import LABEL, FoundBy, Topology
from workers.status import TimelineRow

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]
MAX_ID_CHARS = 8


def known(state: ControllerState, plan: Plan) -> Topology | None:
    """What the group of ``plan`` told of its links, also once it has parted; None while that is nothing."""
    seen = membership.usable(state)
    told = [seen[i].topology for i in plan.worker_ids if i in seen and seen[i].generation == plan.generation]
    remembered = state.compressing.topology if state.compressing.told_racks == plan.generation else None
    return next((one for one in told if one is not None and len(one.racks) == plan.num_members), remembered)


def observe(state: ControllerState, inputs: Inputs) -> Turned:
    """Tell once a group where labels are contradicted, links could not be measured in time, or racks are one level."""
    plan = state.plan
    if plan is None or state.compressing.told_racks == plan.generation:
        return state, ()
    topology = known(state, plan)
    if topology is None:
        return state, ()
    told = replace(state, compressing=replace(state.compressing, told_racks=plan.generation, topology=topology))
    reason = _reason(state, plan, topology)
    # What a group told before it was adopted, the controller before has noted.
    return told, () if state.is_adopting or not reason else (Note(_row(state, inputs, plan, topology, reason)),)


def _reason(state: ControllerState, plan: Plan, topology: Topology) -> str:
    """Empty where all is as it should be."""
    told = (_found(state, plan, topology), one_level_in_words(plan.exchange.name, topology.racks))
    return "; ".join(filter(None, told))


def _found(state: ControllerState, plan: Plan, topology: Topology) -> str:
    is_pair = topology.found_by is FoundBy.LABELS and plan.num_members == 2
    if topology.found_by is not FoundBy.LINKS and not is_pair:
        return in_words(topology).rstrip(".")
    if not topology.disputes:
        return ""
    name = {m.rank: f"worker {m.worker_id} on node {_node(state, m.worker_id)}" for m in plan.members}
    doubts = [dispute_in_words(one, topology.labels, lambda rank: name[rank]) for one in topology.disputes]
    remedy = f"correct the label {LABEL} of a node that is elsewhere, or see what slows its link"
    return f"labels and links differ: {'; '.join(doubts)}; {topology} are used, as measured; {remedy}"


def _node(state: ControllerState, worker_id: str) -> str:
    return state.nodes.get(worker_id, "")[:MAX_ID_CHARS]


def _row(state: ControllerState, inputs: Inputs, plan: Plan, topology: Topology, reason: str) -> TimelineRow:
    by_label = {"labels": list(topology.labels)} if topology.labels else {}
    used = used_over(plan.exchange.name, topology.racks)
    travels = {"communication": used} if used != plan.exchange.name else {}
    return TimelineRow(
        key=f"racks/{plan.generation}",
        kind=TimelineKind.EXCHANGE,
        time=inputs.unix_s,
        step=planning.progress_step(state),
        actor="racks",
        reason=reason,
        before=by_label,
        after={"racks": list(topology.racks), "found_by": topology.found_by.value, **travels},
        cost_s=0.0,
        steps_lost=0,
    )

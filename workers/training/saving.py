"""Why a checkpoint is saved, by whom, and what it tells of itself, from the state and the plan it was made under."""

from __future__ import annotations

from dataclasses import asdict

from workers.plan import MemberSource, Plan, Switch
from workers.training.setup import Setup
from workers.training.state import CheckpointHeader

COMPLETE = "all samples are trained on"
TAKEN_OVER = "the state of another job was taken over"
WORKER_ENDS = "its worker was told to end, or no controller called it for long"


def interval(every_steps: int) -> str:
    """The reason of a save that the spec asks for."""
    return "every step" if every_steps == 1 else f"every {every_steps} steps"


def saver(plan: Plan) -> str:
    """The member that writes the checkpoint of a plan to save: the source where there is no group, else rank 0."""
    source = plan.source
    if plan.switch is Switch.NOW and isinstance(source, MemberSource) and plan.member(source.worker_id) is not None:
        return source.worker_id
    return min(plan.members, key=lambda member: member.rank).worker_id


def header_for(setup: Setup, plan: Plan, reason: str, *, held_s: float, is_final: bool) -> CheckpointHeader:
    """Describe the last commit of a state that has a lineage; ``held_s`` is how long it held training up."""
    state = setup.state
    assert state.lineage is not None
    return CheckpointHeader(
        attempt=setup.assignment.key.attempt,
        lineage=state.lineage,
        round=state.round,
        generation=state.generation,
        step=setup.step_at(state.cursor),
        cursor=state.cursor,
        metric=state.metric,
        is_final=is_final,
        held_s=held_s,
        reason=reason,
        settings=plan.settings,
        saves=plan.saves,
        plan_sections={
            "global_batch": plan.global_batch,
            "judged_batch": plan.judged_batch,
            "workers": plan.num_members,
            "lr": asdict(plan.lr),
            "precision": asdict(plan.precision),
            "exchange": asdict(plan.exchange) | {"options": dict(plan.exchange.options)},
        },
    )

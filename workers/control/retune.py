"""What the row orders of a group that goes on as it is: another rate, batch or state, a line, a checkpoint. Pure."""

from __future__ import annotations

from typing import TypeAlias

from workers.control import membership, planning
from workers.control.decisions import Action, ControllerState, Inputs
from workers.plan import Cause, Goal, Plan, Switch, TimelineKind
from workers.run_settings import Donor, RunSettings

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]

UNDECIDED = "nobody has said whether it goes on, so it trains on"
ASKED_FOR = "another job is to go on from this state"


def retune(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Carry out the newest order once; a group that is too large for its batch is made smaller first, by ``resize``."""
    plan = state.plan
    if plan is None or plan.goal is not Goal.TRAIN or any(s.is_finished for s in membership.statuses(state)):
        return None
    source = planning.member_source(state)
    wish = _order(inputs, plan)
    is_ordered = wish is not None or inputs.direction.saves > plan.saves
    if source is None or not (is_ordered or _is_line_moved(state, inputs, plan)):
        return None
    donor = None if wish is None else planning.wanted_donor(state, inputs, plan.settings)
    draft = planning.Draft(
        switch=Switch.AGREED,
        members=plan.worker_ids,
        source=donor or source,
        cause=_cause(state, wish, donor, inputs),
        is_new_group=donor is not None,
        is_new_lineage=donor is not None,
        settings=wish,
        saves=inputs.direction.saves,
    )
    state, note = planning.issue(state, inputs, draft, plan)
    return state, (note,)


def _is_line_moved(state: ControllerState, inputs: Inputs, plan: Plan) -> bool:
    """Whether members should stand elsewhere than the plan has it; a line that lies behind them is none."""
    line = planning.line(state, inputs)
    drawn = max(s.cursor or 0 for s in membership.statuses(state))
    return line != plan.until and (line is None or line > drawn)


def _order(inputs: Inputs, plan: Plan) -> RunSettings | None:
    """The newest order where it is still to be carried out, and this group can."""
    wish = inputs.direction.settings
    is_open = wish is not None and wish.n > plan.settings and plan.num_members <= wish.global_batch
    return wish if is_open else None


def _cause(state: ControllerState, wish: RunSettings | None, donor: Donor | None, inputs: Inputs) -> Cause:
    plan = state.plan
    assert plan is not None
    if wish is None and inputs.direction.saves > plan.saves:
        return Cause(kind=TimelineKind.CHECKPOINT, actor="sweep", reason=ASKED_FOR)
    if wish is None:
        return _cause_of_line(planning.line(state, inputs), inputs)
    kind = TimelineKind.LR if plan.global_batch == wish.global_batch else TimelineKind.BATCH
    return Cause(kind=TimelineKind.RESTORE if donor else kind, actor=wish.actor, reason=wish.reason)


def _cause_of_line(line: int | None, inputs: Inputs) -> Cause:
    if line != inputs.direction.until:
        return Cause(kind=TimelineKind.LIMIT, actor="controller", reason=UNDECIDED)
    where = "to its end" if line is None else f"until {line:,} samples"
    return Cause(kind=TimelineKind.LIMIT, actor="sweep", reason=f"its sweep lets it train {where}")

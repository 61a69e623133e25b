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
    is_silent = wish is None and inputs.direction.saves <= plan.saves
    if source is None or (is_silent and not _is_line_moved(state, inputs, plan)):
        return None
    donor = None if wish is None else planning.wanted_donor(state, inputs, plan.settings)
    draft = planning.Draft(
        switch=Switch.AGREED,
        members=plan.worker_ids,
        source=donor or source,
        cause=_cause(plan, wish, donor, inputs),
        is_new_group=donor is not None,
        is_new_lineage=donor is not None,
        settings=wish,
        saves=inputs.direction.saves,
    )
    state, note = planning.issue(state, inputs, draft, plan)
    assert state.plan is not None
    # A line that was moved as it should tells its owner nothing new.
    has_news = not is_silent or state.plan.until != inputs.direction.until
    return state, (note,) if has_news else ()


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


def _cause(plan: Plan, wish: RunSettings | None, donor: Donor | None, inputs: Inputs) -> Cause:
    if wish is None and inputs.direction.saves > plan.saves:
        return Cause(kind=TimelineKind.CHECKPOINT, actor="sweep", reason=ASKED_FOR)
    if wish is None:
        return Cause(kind=TimelineKind.LIMIT, actor="controller", reason=UNDECIDED)
    kind = TimelineKind.LR if plan.global_batch == wish.global_batch else TimelineKind.BATCH
    return Cause(kind=TimelineKind.RESTORE if donor else kind, actor=wish.actor, reason=wish.reason)

"""What all advisors do alike: change one thing of the plan, measure, and tell what it brought. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workers.advisors.judging import Judged
from workers.control import planning
from workers.control.decisions import ControllerState, Inputs, Note
from workers.plan import Cause, Plan, Switch, TimelineKind
from workers.status import TimelineRow


def draft(state: ControllerState, plan: Plan, cause: Cause) -> planning.Draft:
    """The same group at its next boundary, for a caller who says what changes; a member holds the state."""
    source = planning.member_source(state)
    assert source is not None
    return planning.Draft(switch=Switch.AGREED, members=plan.worker_ids, source=source, cause=cause, is_new_group=False)


def issue(
    state: ControllerState,
    inputs: Inputs,
    changed: planning.Draft,
    before: Mapping[str, object],
    after: Mapping[str, object],
) -> tuple[ControllerState, Note]:
    """Make it the latest plan, with what changed in its timeline row."""
    state, note = planning.issue(state, inputs, changed, state.plan)
    return state, Note(replace(note.row, before=before, after=after))


def row_of(state: ControllerState, inputs: Inputs, judged: Judged, number: int) -> TimelineRow:
    """What a change was found to bring, the ``number``-th of its actor; ``error`` is the standard error of the gain.

    ``num_steps`` are those measured, before and since.
    """
    rate, now, verdict = judged.rate, judged.now, judged.verdict
    return TimelineRow(
        key=f"{judged.actor}/{state.term}/{number}",
        kind=TimelineKind.PROBATION,
        time=inputs.unix_s,
        step=planning.progress_step(state),
        actor=judged.actor,
        reason=judged.told,
        before={**judged.before, "samples_per_s": round(rate.samples_per_s, 3)},
        after={
            **judged.after,
            "samples_per_s": round(now.samples_per_s, 3),
            "expected_gain": round(judged.expected_gain, 3),
            "gain": round(verdict.gain, 3),
            "error": round(verdict.gain * (rate.error**2 + now.error**2) ** 0.5, 3),
            "num_steps": rate.num_steps + now.num_steps,
            **judged.more,
            "is_kept": verdict.is_kept,
        },
        cost_s=0.0,
        steps_lost=0,
    )

"""Shares of the batch by the workers' speeds: another split when it pays, measured, and taken back if not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from workers.advisors import judging, shares
from workers.advisors.judging import Judged
from workers.advisors.shares import Change
from workers.control import membership, planning, relieve, sharing, trials
from workers.control.decisions import Action, ControllerState, Inputs, Note
from workers.control.sharing import Trial
from workers.plan import Cause, Goal, Plan, TimelineKind
from workers.status import TimelineRow

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]

LEAST_STEPS = 100
"""Steps still to come, for a change to be worth measuring."""

MOST_LOADS = 2 * sharing.MIN_LOADS
"""Runs of rounds within which parts should be found; a job that is too unsteady for it must not wait on."""


def observe(state: ControllerState, inputs: Inputs) -> ControllerState:
    """Take in what workers told of their speeds."""
    known = sharing.observe(state.sharing, inputs.statuses.values())
    known = sharing.without(known, [i for i in known.known if i not in state.workers])
    return state if known is state.sharing else replace(state, sharing=known)


def is_weighing(state: ControllerState, plan: Plan) -> bool:
    """Whether the parts of this group are still to be found: how fast it is as it stands tells little of it.

    Only for as long as what is missing may still be told: members tell of runs at about the same pace.
    """
    known = state.sharing
    if plan.num_members < 2 or not is_long(state, plan):
        return False
    if known.trial is not None or known.reviewed_generation == plan.generation:
        return known.trial is not None
    heard = [known.known[i] for i in plan.worker_ids if i in known.known]
    runs = [one.num_loads if one.plan_id == plan.id else 0 for one in heard]
    return bool(runs) and max(runs) < MOST_LOADS


def is_long(state: ControllerState, plan: Plan) -> bool:
    """Whether there are steps enough to come for a change to pay."""
    left = membership.num_left(state)
    return left is not None and left >= LEAST_STEPS * plan.global_batch


def balance(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Judge the split on trial, or look at the parts where it is time; the last rule, so all else is at rest."""
    plan = state.plan
    if plan is None or plan.goal is not Goal.TRAIN or plan.num_members < 2 or not membership.is_settled(state, plan):
        return None
    if any(s.is_finished for s in membership.statuses(state)) or planning.member_source(state) is None:
        return None
    trial = state.sharing.trial
    if trial is not None:
        return _tried(state, inputs, plan, trial, now_s)
    is_measured = state.adapting.trial is not None or state.compressing.trial is not None
    return None if is_measured else _reviewed(state, inputs, plan, now_s)


def _reviewed(state: ControllerState, inputs: Inputs, plan: Plan, now_s: float) -> Turned | None:
    known = state.sharing
    if not is_long(state, plan) or not sharing.is_due(known, plan, now_s, state.settings.review_s):
        return None
    standing, rate = sharing.standing(known, plan), sharing.rate_before(known, plan)
    if standing is None or rate is None:
        return None
    state, notes = _named(state, inputs, standing, now_s)
    state = replace(state, sharing=sharing.reviewed(state.sharing, plan, now_s))
    advice = shares.advise(standing)
    state = replace(state, sharing=replace(state.sharing, why="" if isinstance(advice, Change) else advice.reason))
    if not isinstance(advice, Change):
        return state, notes
    before = plan.parts
    after = dict(zip(before, advice.parts, strict=True))
    told = {"parts": list(after.values()), "expected_gain": round(advice.expected_gain, 3)}
    draft = replace(trials.draft(state, plan, _cause(advice.reason)), parts=after)
    state, note = trials.issue(state, inputs, draft, _parts(before), told)
    assert state.plan is not None
    trial = Trial(
        plan_id=state.plan.id,
        before=before,
        after=after,
        rate=rate,
        expected_gain=advice.expected_gain,
        least_kept=advice.least_kept,
    )
    return replace(state, sharing=replace(state.sharing, trial=trial)), (*notes, note)


def _tried(state: ControllerState, inputs: Inputs, plan: Plan, trial: Trial, now_s: float) -> Turned | None:
    """What a split on trial came to; another plan, or a worker of another speed, ends the trial without a word."""
    known = state.sharing
    if plan.id != trial.plan_id or sharing.num_shifts(known, plan) != known.num_shifts:
        return replace(state, sharing=replace(known, trial=None)), ()
    now = sharing.rate(known, plan.id)
    is_to_show = trial.least_kept < shares.LEAST_KEPT  # what more costs who waits: by chance it would wait on for long
    verdict = judging.judge(trial.rate, now, least_gain=trial.least_kept, gives_doubt=is_to_show)
    standing = sharing.standing(known, plan)
    if verdict is None or now is None or standing is None:
        return None
    known = replace(known, num_judged=known.num_judged + 1, trial=None)
    gain = judging.in_words(verdict, shares.in_words(tuple(trial.before.values())), trial.expected_gain, "taken back")
    step = "; kept, as who waits may get still more" if verdict.is_kept and verdict.gain < shares.LEAST_KEPT else ""
    judged = Judged(
        actor=sharing.ACTOR,
        before=_parts(trial.before),
        after=_parts(trial.after),
        rate=trial.rate,
        now=now,
        expected_gain=trial.expected_gain,
        verdict=verdict,
        told=f"parts {shares.in_words(tuple(trial.after.values()))} are {gain}{step}",
    )
    row = trials.row_of(state, inputs, judged, known.num_judged)
    if verdict.is_kept:
        # With two sizes seen of every part the fixed times are known: the next look, at once, may find still better.
        known = replace(known, num_failed=0, reviewed_s=float("-inf"))
        return replace(state, sharing=known), (Note(row),)
    known = replace(sharing.reviewed(known, plan, now_s), num_failed=known.num_failed + 1)
    # Who is slow whatever its part may show only now: the next look would be minutes away.
    state, named = _named(replace(state, sharing=known), inputs, standing, now_s)
    state, note = _taken_back(state, inputs, plan, trial)
    return state, (Note(row), *named, note)


def _taken_back(state: ControllerState, inputs: Inputs, plan: Plan, trial: Trial) -> tuple[ControllerState, Note]:
    told, refused = (shares.in_words(tuple(parts.values())) for parts in (trial.before, trial.after))
    cause = _cause(f"parts {told} again, as {refused} did not pay")
    draft = replace(trials.draft(state, plan, cause), parts=trial.before)
    return trials.issue(state, inputs, draft, _parts(trial.after), _parts(trial.before))


def _cause(reason: str) -> Cause:
    return Cause(kind=TimelineKind.BATCH, actor=sharing.ACTOR, reason=reason)


def _parts(by_worker: Mapping[str, int]) -> dict[str, object]:
    return {"parts": list(by_worker.values())}


def _named(
    state: ControllerState, inputs: Inputs, standing: shares.Standing, now_s: float
) -> tuple[ControllerState, tuple[Action, ...]]:
    """Name each worker that no share is small enough for, and look for another in place of the slowest.

    Once, but anew where it had recovered meanwhile. One that could not be relieved is the last to be tried again.
    """
    found, known = shares.stragglers(standing, shares.STRAGGLES), state.sharing
    holding = known.told & shares.stragglers(standing, 1.0).keys()
    news = {i: why for i, why in found.items() if i not in holding}
    relief = relieve.in_vain(replace(known.relief, told=known.relief.told & holding), found)
    number, told = known.num_told, holding | news.keys()
    state = replace(state, sharing=replace(known, told=told, num_told=number + len(news), relief=relief))
    rows = [
        TimelineRow(
            key=f"straggler/{state.term}/{number + n}",
            kind=TimelineKind.LIMIT,
            time=inputs.unix_s,
            step=planning.progress_step(state),
            actor=sharing.ACTOR,
            reason=why,
            after={"worker_id": worker_id, "node_id": state.nodes.get(worker_id, "")},
            cost_s=0.0,
            steps_lost=0,
        )
        for n, (worker_id, why) in enumerate(news.items(), 1)
    ]
    if not found:
        return state, ()
    state, begun = relieve.begin(state, inputs, min(found, key=relief.told.__contains__), now_s)
    return state, (*(Note(row) for row in rows), *begun)

"""The global batch by goodput: another one when it pays, measured, and taken back if it does not. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from workers.advisors import goodput
from workers.advisors.goodput import Advice, Change, Keep, Situation
from workers.advisors.judging import Judged, Rate, Verdict
from workers.advisors.throughput import Layout
from workers.control import adapting, membership, planning, sharing, trials
from workers.control.adapting import ACTOR, Adapting, Trial
from workers.control.decisions import Action, ControllerState, Inputs, Note
from workers.control.planning import Draft
from workers.plan import Cause, Goal, Plan, TimelineKind
from workers.spec_parts import UNBOUNDED
from workers.status import WorkerStatus

NO_NOISE = (
    "The batch stays: no noise_scale is told yet, which takes micro-batches to compare: two workers, or parts that are "
    "computed in two forward passes at least; of samples with lengths it is measured from the 16th step on, and not "
    "where the model has batch normalisation or writes to buffers."
)
ROUGH_NOISE = "The batch stays: too few steps have measured the noise_scale yet to tell how far it may be off."

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]


def observe(state: ControllerState, inputs: Inputs) -> ControllerState:
    """Take in what steps took, where the batch is fixed, too: other sizes are foreseen by it."""
    generation = state.plan.generation if state.plan else 0  # of an older group nobody knows how many nodes it had
    told = (record for status in inputs.statuses.values() for record in status.records)
    found = [record for record in told if record.generation == generation]
    members = state.plan.worker_ids if state.plan else ()
    num_nodes = len({state.nodes[i] for i in members if i in state.nodes}) or 1
    shared_by = state.plan.id if state.plan and state.plan.cause.actor == sharing.ACTOR else None
    known = adapting.observe(state.adapting, found, num_nodes, shared_by)
    return state if known is state.adapting else replace(state, adapting=known)


def adapt(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Judge the batch on trial, or weigh another one where it is time."""
    plan, known = state.plan, state.adapting
    if state.spec.batch.adapt != "goodput" or plan is None or plan.goal is not Goal.TRAIN:
        return None
    shares = state.sharing.trial
    is_shared = shares is not None and shares.plan_id == plan.id
    # At this batch.
    is_measured = is_shared or state.sizing.ask is not None or state.compressing.trial is not None
    is_done = any(s.is_finished for s in membership.statuses(state))
    is_calm = membership.is_settled(state, plan) and not is_done and not is_measured
    if not is_calm or known.place != (plan.generation, plan.global_batch) or planning.member_source(state) is None:
        return None
    if known.trial is not None:
        return _tried(state, inputs, plan, known.trial)
    if plan.judged_batch is not None:
        why = f"{plan.global_batch} were on trial, and what was measured went with the controller before"
        return _taken_back(state, inputs, plan, plan.judged_batch, why)
    return _reviewed(state, inputs, plan)


def _reviewed(state: ControllerState, inputs: Inputs, plan: Plan) -> Turned | None:
    known = state.adapting
    rate = adapting.rate(known, adapting.NUM_BEFORE)
    if rate is None or rate.num_steps < adapting.MIN_STEPS or known.is_shared:
        return None
    if known.noise_bounds is None:
        why = NO_NOISE if known.noise_scale is None else ROUGH_NOISE
        return None if known.why == why else (replace(state, adapting=replace(known, why=why)), ())
    if not _has_rested(state):
        return None
    if known.num_seen - known.reviewed < adapting.MIN_STEPS and known.reviewed <= known.num_seen:
        return None
    situation = _situation(state, plan, known)
    if situation is None:
        return None
    advice = _rested(known, plan.global_batch, goodput.advise(situation))
    known = replace(known, reviewed=known.num_seen, why="" if isinstance(advice, Change) else advice.reason)
    if not isinstance(advice, Change):
        return replace(state, adapting=known), ()
    told: dict[str, object] = {
        "global_batch": advice.global_batch,
        "expected_gain": round(advice.expected_gain, 3),
        "error": round(advice.error, 3),
        "noise_scale": round(goodput.doubted(situation.noise_bounds, plan.global_batch, advice.global_batch), 1),
    }
    state = replace(state, adapting=known)
    draft = replace(_draft(state, plan, advice.global_batch, advice.reason), judged_batch=plan.global_batch)
    state, note = trials.issue(state, inputs, draft, {"global_batch": plan.global_batch}, told)
    trial = Trial(
        num_workers=plan.num_members,
        before=plan.global_batch,
        after=advice.global_batch,
        rate=rate,
        expected_gain=advice.expected_gain,
    )
    is_growth = trial.after > trial.before
    known = adapting.change(replace(known, trial=trial), _cursor(state), is_growth=is_growth)
    return replace(state, adapting=known), (note,)


def _rested(known: Adapting, now: int, advice: Advice) -> Advice:
    """The advice, but for one that comes too soon after a change in the other direction, or one that was taken back."""
    if not isinstance(advice, Change) or adapting.may_change(known, is_growth=advice.global_batch > now):
        return advice
    told = f"{now} samples a step stay for now: the last change was taken back, or in the other direction, not long ago"
    return Keep(reason=f"{told}. {advice.reason}.")


def _tried(state: ControllerState, inputs: Inputs, plan: Plan, trial: Trial) -> Turned | None:
    """What the batch on trial came to; another batch ends it without a word."""
    known = state.adapting
    if plan.global_batch != trial.after:
        return replace(state, adapting=replace(known, trial=None)), ()
    if plan.num_members != trial.num_workers:
        then, since = trial.num_workers, plan.num_members
        were, are = f"{then} worker{'s' if then > 1 else ''}", f"there {'are' if since > 1 else 'is'} {since} now"
        why = f"{trial.after} were on trial with {were}, and {are}"
        return _taken_back(state, inputs, plan, trial.before, why)
    verdict, now = adapting.judge(known, trial), adapting.rate(known)
    if verdict is None or now is None or known.noise_bounds is None:
        return None
    noise = goodput.doubted(known.noise_bounds, trial.before, trial.after)
    known = replace(known, trial=None, num_judged=known.num_judged + 1)
    row = trials.row_of(state, inputs, _judged(trial, now, verdict, noise), known.num_judged)
    if verdict.is_kept:
        return _as_it_is(replace(state, adapting=known), inputs, plan, row.reason), (Note(row),)
    known = adapting.change(known, _cursor(state), is_growth=None)
    known = adapting.refuse(known, trial, now, noise)
    state = replace(state, adapting=known)
    told = {"global_batch": trial.before, "noise_scale": round(noise, 1)}
    draft = _draft(state, plan, trial.before, row.reason)
    state, note = trials.issue(state, inputs, draft, {"global_batch": plan.global_batch}, told)
    return state, (Note(row), note)


def _taken_back(state: ControllerState, inputs: Inputs, plan: Plan, before: int, why: str) -> Turned:
    """The batch before one on trial that cannot be judged any more."""
    state = replace(state, adapting=replace(state.adapting, trial=None))
    if before < plan.num_members:
        return _as_it_is(state, inputs, plan, why), ()
    known = adapting.change(state.adapting, _cursor(state), is_growth=None)
    draft = _draft(state, plan, before, f"{before} samples a step again: {why}")
    told = {"global_batch": plan.global_batch}, {"global_batch": before}
    state, note = trials.issue(replace(state, adapting=known), inputs, draft, *told)
    return state, (note,)


def _as_it_is(state: ControllerState, inputs: Inputs, plan: Plan, reason: str) -> ControllerState:
    """The batch is on trial no more, which the plan tells whoever goes on from it; no row of its own does."""
    state, _ = planning.issue(state, inputs, _draft(state, plan, plan.global_batch, reason), plan)
    return state


def _judged(trial: Trial, now: Rate, verdict: Verdict, noise: float) -> Judged:
    bound = "least" if trial.after > trial.before else "most"
    expected = f"expected: {trial.expected_gain:.2f}; noise scale at {bound} {noise:.0f} samples"
    told = f"{trial.after} samples a step make progress {verdict.gain:.2f} times as fast as {trial.before} ({expected})"
    return Judged(
        actor=ACTOR,
        before={"global_batch": trial.before},
        after={"global_batch": trial.after},
        rate=trial.rate,
        now=now,
        expected_gain=trial.expected_gain,
        verdict=verdict,
        told=told if verdict.is_kept else f"{told}; going back",
        more={"noise_scale": round(noise, 1)},
    )


def _draft(state: ControllerState, plan: Plan, global_batch: int, reason: str) -> Draft:
    cause = Cause(kind=TimelineKind.BATCH, actor=ACTOR, reason=reason)
    return replace(trials.draft(state, plan, cause), global_batch=global_batch)


def _situation(state: ControllerState, plan: Plan, known: Adapting) -> Situation | None:
    """None while the steps under this plan tell no layout."""
    batch, layout = state.spec.batch, known.layout
    if layout is None or layout not in known.memory or known.noise_bounds is None:
        return None
    asked = batch.micro_size if isinstance(batch.micro_size, int) and not known.is_by_length else None
    return Situation(
        layout=layout,
        initial=batch.global_size,
        most=largest_batch(state),
        largest_measured=max(each.global_batch for each in known.memory),
        noise_bounds=known.noise_bounds,
        model=adapting.model(known),
        most_a_pass=asked or _most_a_pass(state, plan, layout),
        refused={batch: refusal.noise_scale for batch, refusal in known.refused.items()},
        num_left=membership.num_left(state),
    )


def _most_a_pass(state: ControllerState, plan: Plan, layout: Layout) -> int | None:
    """Samples of a pass as found by trying; where a part is computed in one, what memory is expected to hold."""
    statuses = membership.statuses(state)
    if layout.num_passes > 1:
        return min((s.micro_size for s in statuses if s.micro_size), default=None)
    fits = [most for s in statuses if (most := _foreseen(s, plan)) is not None]
    return max(-(-layout.global_batch // layout.num_workers), int(min(fits))) if fits else None


def _foreseen(status: WorkerStatus, plan: Plan) -> float | None:
    """The mean part at which that of this worker, by its share, still fits into a pass; None while that is unknown."""
    member = plan.member(status.worker_id)
    fitting = None if status.footprint is None else status.footprint.fitting
    if fitting is None or member is None or member.weight <= 0:
        return None
    return fitting * sum(each.weight for each in plan.members) / member.weight / plan.num_members


def largest_batch(state: ControllerState) -> int:
    """Where no bound was asked for a whole epoch: a step that holds a sample twice learns nothing from the second."""
    asked = state.spec.batch.global_size
    return state.spec.batch.max_global_size or min(UNBOUNDED * asked, max(asked, _epoch(state)))


def _has_rested(state: ControllerState) -> bool:
    """Whether there were few enough changes in the last epoch."""
    return adapting.has_rested(state.adapting, _cursor(state), _epoch(state))


def _epoch(state: ControllerState) -> int:
    """Samples of the dataset, 0 while nobody has told."""
    return min((s.build.num_train for s in membership.statuses(state) if s.build is not None), default=0)


def _cursor(state: ControllerState) -> int:
    return max((s.cursor or 0 for s in membership.statuses(state)), default=0)

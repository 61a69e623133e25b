"""How gradients travel where the job leaves it open: another scheme when it pays, measured, taken back if not. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from workers.advisors import exchange
from workers.advisors.exchange import DENSE, Change, Link, Situation
from workers.control import balance, compressing, membership, planning, sharing
from workers.control.compressing import ACTOR, Trial
from workers.control.decisions import Action, ControllerState, Inputs, Note
from workers.exchange_options import BLURRING
from workers.measures import SchemeCost
from workers.plan import Cause, Exchange, Goal, Plan, Switch, TimelineKind

SCHEMES = (DENSE, "bf16", "fp16", "int8", "int4")
"""What may be chosen, the one that loses least first."""

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]


def observe(state: ControllerState, inputs: Inputs) -> ControllerState:
    """Take in what workers told of their exchanges."""
    if state.spec.exchange.scheme != "auto":
        return state
    known = compressing.observe(state.compressing, inputs.statuses.values(), state.workers)
    return state if known is state.compressing else replace(state, compressing=known)


def allowed(state: ControllerState) -> tuple[str, ...]:
    """The schemes that the job may use, by the class of loss that it allows and what its batch is chosen by."""
    if state.spec.exchange.loss_class == "lossless":
        return (DENSE,)
    adapts = state.spec.batch.adapt == "goodput"
    return tuple(scheme for scheme in SCHEMES if not (adapts and scheme in BLURRING))


def compress(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Judge the scheme on trial, or look at it where it is time; after all other advisors, so all else is at rest."""
    plan = state.plan
    if state.spec.exchange.scheme != "auto" or plan is None or plan.goal is not Goal.TRAIN or plan.num_members < 2:
        return None
    is_done = any(s.is_finished for s in membership.statuses(state))
    if is_done or not membership.is_settled(state, plan) or planning.member_source(state) is None:
        return None
    trial = state.compressing.trial
    if trial is not None:
        return _tried(state, inputs, plan, trial, now_s)
    is_measured = state.adapting.trial is not None or state.sizing.ask is not None or balance.is_weighing(state, plan)
    return None if is_measured else _reviewed(state, inputs, plan, now_s)


def _reviewed(state: ControllerState, inputs: Inputs, plan: Plan, now_s: float) -> Turned | None:
    known, link = state.compressing, compressing.link(state.compressing, plan)
    rate = sharing.rate(state.sharing, plan.id, sharing.NUM_BEFORE)
    is_long = balance.is_long(state, plan)
    if link is None or rate is None or not is_long or not compressing.is_due(known, plan, link, now_s):
        return None
    known = compressing.reviewed(known, plan, link, now_s)
    if plan.generation != state.compressing.reviewed_at[0]:
        known = replace(known, refused={})  # what did not pay among others may among these
    situation = _situation(replace(state, compressing=known), plan, link, plan.global_batch / rate.samples_per_s)
    if situation is None:
        return replace(state, compressing=known), ()
    advice = exchange.advise(situation)
    if not isinstance(advice, Change):
        return replace(state, compressing=replace(known, why=advice.reason)), ()
    state, note = _issue(replace(state, compressing=replace(known, why="")), inputs, plan, advice.scheme, advice.reason)
    told = Note(replace(note.row, after={**note.row.after, "expected_gain": round(advice.expected_gain, 3)}))
    assert state.plan is not None
    trial = Trial(
        plan_id=state.plan.id,
        before=plan.exchange.scheme,
        after=advice.scheme,
        rate=rate,
        expected_gain=advice.expected_gain,
        link=link,
        link_s=exchange.link_s(situation),
    )
    return replace(state, compressing=replace(state.compressing, trial=trial)), (told,)


def _situation(state: ControllerState, plan: Plan, link: Link, step_s: float) -> Situation | None:
    """None where a member has not told what schemes cost it."""
    seen = membership.usable(state)
    builds = [seen[i].build for i in plan.worker_ids if i in seen]
    tables = [build.schemes for build in builds if build is not None]
    names = [name for name in (*allowed(state), plan.exchange.scheme) if all(name in table for table in tables)]
    if len(tables) < plan.num_members or not {DENSE, plan.exchange.scheme} <= set(names):
        return None
    costs: dict[str, SchemeCost] = {
        name: max((table[name] for table in tables), key=lambda cost: cost.seconds_a_million) for name in names
    }
    return Situation(
        scheme=plan.exchange.scheme,
        allowed=allowed(state),
        costs=costs,
        num_values=max(build.num_parameters for build in builds if build is not None),
        step_s=step_s,
        link=link,
        refused=state.compressing.refused,
    )


def _tried(state: ControllerState, inputs: Inputs, plan: Plan, trial: Trial, now_s: float) -> Turned | None:
    """What a scheme on trial came to; another plan ends the trial, and what the scheme is worth is asked anew."""
    known = state.compressing
    if plan.id != trial.plan_id:
        return replace(state, compressing=replace(known, trial=None, reviewed_link=None)), ()
    now, link = sharing.rate(state.sharing, plan.id), compressing.link(known, plan)
    verdict = compressing.judge(now, trial)
    if verdict is None or now is None or link is None:
        return None
    known = compressing.reviewed(replace(known, trial=None, num_judged=known.num_judged + 1), plan, link, now_s)
    row = replace(
        compressing.row_of(trial, now, verdict),
        key=f"{ACTOR}/{state.term}/{known.num_judged}",
        time=inputs.unix_s,
        step=planning.progress_step(state),
    )
    if verdict.is_kept:
        return replace(state, compressing=replace(known, num_failed=0, why=f"{_sentence(row.reason)}")), (Note(row),)
    state = replace(state, compressing=replace(compressing.refuse(known, trial), why=_sentence(row.reason)))
    state, note = _issue(state, inputs, plan, trial.before, row.reason)
    return state, (Note(row), note)


def _issue(
    state: ControllerState, inputs: Inputs, plan: Plan, scheme: str, reason: str
) -> tuple[ControllerState, Note]:
    """The same group with another scheme."""
    source = planning.member_source(state)
    assert source is not None
    draft = planning.Draft(
        switch=Switch.AGREED,
        members=plan.worker_ids,
        source=source,
        cause=Cause(kind=TimelineKind.EXCHANGE, actor=ACTOR, reason=reason),
        is_new_group=False,
        exchange=Exchange(scheme=scheme, why=f"auto: {reason}"),
    )
    state, note = planning.issue(state, inputs, draft, plan)
    return state, Note(replace(note.row, before={"scheme": plan.exchange.scheme}, after={"scheme": scheme}))


def _sentence(told: str) -> str:
    return f"{told[0].upper()}{told[1:]}."

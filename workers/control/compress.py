"""How gradients travel where the job leaves it open: another scheme when it pays, measured, taken back if not. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from workers.advisors import exchange, judging, levels, scaling, turning
from workers.advisors.exchange import DENSE, Change, Link, Situation
from workers.advisors.judging import Judged, Rate, Verdict
from workers.control import adapting, balance, compressing, membership, planning, racks, sharing, trials
from workers.control.compressing import ACTOR, Seen, Trial
from workers.control.decisions import Action, ControllerState, Inputs, Note
from workers.control.planning import Draft
from workers.exchange_options import BLURRING, LEVELS, bucketed, formats_of
from workers.measures import SchemeCost
from workers.plan import Cause, Exchange, Goal, Plan, TimelineKind
from workers.racks import Topology
from workers.status import StopCause, TimelineRow, WorkerStatus

SCHEMES: tuple[str, ...] = (
    *(DENSE, LEVELS[0], "bf16", "fp16", *LEVELS[1:3]),
    *("int8", *LEVELS[3:6], "int4", LEVELS[6]),
)
"""What may be chosen, the one that loses least first; of those over racks where ranks sit in racks."""

AT_A_LOSS: tuple[str, ...] = ("two_four", "powersgd", "topk")
"""What may be chosen besides where the job allows it and ranks sit in no racks; likewise."""

MOST_RUNS = 2 * compressing.MIN_RUNS
"""Runs of rounds within which an exchange should be measured; a job that is too unsteady for it must not wait on."""

NODE_GONE = ("its node died", "refused to be called")
"""How it begins that is told of a worker whose node went."""

OF_CODE = frozenset((StopCause.MEMORY, StopCause.USER))
"""Why a worker leaves its round by itself."""

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]


def observe(state: ControllerState, inputs: Inputs) -> ControllerState:
    """Take in what workers told of their exchanges."""
    if state.spec.exchange.scheme != "auto":
        return state
    known = compressing.observe(state.compressing, inputs.statuses.values(), state.workers)
    if state.plan is not None and known.trial is not None:
        known = compressing.followed(known, state.plan)
        is_broken = _is_broken(state, state.plan)
        known = compressing.blamed(known, is_broken=is_broken, is_blamed=is_broken and _is_to_blame(state, state.plan))
    return state if known is state.compressing else replace(state, compressing=known)


def _is_broken(state: ControllerState, plan: Plan) -> bool:
    """Whether the group of ``plan`` breaks with the scheme of that in force."""
    if not state.is_broken and membership.breach(state) is None:
        return False
    left = _left(state, plan)
    return not left or any(s.plan is not None and s.plan.id >= plan.id for s in left)


def _is_to_blame(state: ControllerState, plan: Plan) -> bool:
    """Whether the scheme of ``plan`` may be what its group breaks of.

    Not where all who are gone went with a node. A process that died, or is silent, may have run out of memory.
    """
    stops = {s.stop.cause for s in _left(state, plan) if s.stop is not None}
    gone = [why for worker_id, why in state.departed.items() if plan.member(worker_id) is not None]
    return not gone or bool(stops & OF_CODE) or not all(why.startswith(NODE_GONE) for why in gone)


def _left(state: ControllerState, plan: Plan) -> list[WorkerStatus]:
    """What those members tell that are not gone."""
    return [s for i, s in membership.usable(state).items() if plan.member(i) is not None]


def allowed(state: ControllerState) -> tuple[str, ...]:
    """The schemes that the job may use, by the class of loss that it allows and what its batch is chosen by."""
    schemes = (*SCHEMES, *AT_A_LOSS) if state.spec.exchange.loss_class == "lossy" else SCHEMES
    if state.spec.exchange.loss_class == "lossless":
        schemes = (DENSE, LEVELS[0])
    elif state.spec.follows_noise:
        schemes = tuple(name for name in SCHEMES if BLURRING.isdisjoint(formats_of(name)))
    return tuple(name for name in schemes if name not in state.compressing.barred)


def is_weighing(state: ControllerState, plan: Plan) -> bool:
    """Whether the scheme of this group is still to be found, or on trial: how fast it is tells little of it.

    Only for as long as what is missing may still be told, as with the parts.
    """
    known = state.compressing
    if known.trial is not None or state.spec.exchange.scheme != "auto":
        return known.trial is not None
    if plan.num_members < 2 or not balance.is_long(state, plan) or known.reviewed_at[0] == plan.generation:
        return False
    heard = [known.heard[i] for i in plan.worker_ids if i in known.heard]
    runs = [len(one.runs) if one.plan_id == plan.id else 0 for one in heard]
    return bool(runs) and max(runs) < MOST_RUNS


def compress(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """Judge the scheme on trial, or look at it where it is time; after all other advisors, so all else is at rest."""
    plan = state.plan
    if state.spec.exchange.scheme != "auto" or plan is None or plan.goal is not Goal.TRAIN:
        return None
    known = state.compressing
    is_done = any(s.is_finished for s in membership.statuses(state))
    if is_done or not membership.is_settled(state, plan) or planning.member_source(state) is None:
        return None
    if known.trial is not None:
        return _tried(state, inputs, plan, known.trial, now_s)
    if known.unjudged is not None:
        return _returned(state, inputs, plan, known.unjudged)
    is_measured = state.adapting.trial is not None or balance.is_weighing(state, plan) or plan.num_members < 2
    return None if is_measured else _reviewed(state, inputs, plan, now_s)


def _returned(state: ControllerState, inputs: Inputs, plan: Plan, scheme: str) -> Turned:
    """Back to the scheme before a trial that was cut short: what is not judged is not kept."""
    state = replace(state, compressing=replace(state.compressing, unjudged=None))
    if plan.exchange.name == scheme:
        return state, ()
    reason = f"{scheme} again: something else changed before {plan.exchange.name} was judged"
    state, note = trials.issue(state, inputs, _draft(state, plan, scheme, reason), _told(plan), {"scheme": scheme})
    return state, (note,)


def _reviewed(state: ControllerState, inputs: Inputs, plan: Plan, now_s: float) -> Turned | None:
    known, link = state.compressing, compressing.link(state.compressing, plan)
    rate = sharing.rate(state.sharing, plan.id, sharing.NUM_BEFORE)
    is_long = balance.is_long(state, plan)
    if link is None or rate is None or rate.num_steps < scaling.MIN_STEPS or not is_long:
        return None
    if not compressing.is_due(known, plan, link, now_s):
        return None
    known = compressing.reviewed(compressing.with_links_anew(known, now_s), plan, link, now_s)
    if plan.generation != state.compressing.reviewed_at[0]:
        known = replace(known, refused={}, spent=1.0, latency_s=0.0)  # what did not pay among others may among these
    topology, step_s = racks.known(state, plan) or levels.ONE_RACK, plan.global_batch / rate.samples_per_s
    situation = _situation(replace(state, compressing=known), plan, topology, link, step_s)
    if situation is None:
        return replace(state, compressing=known), ()
    advice = exchange.advise(situation)
    if not isinstance(advice, Change):
        return replace(state, compressing=replace(known, why=advice.reason)), ()
    reason = compressing.without_barred(advice.reason, known)
    reason = f"{reason} ({topology})" if topology.has_levels else reason
    state = replace(state, compressing=replace(known, why=""))
    after = {"scheme": advice.scheme, "expected_gain": round(advice.expected_gain, 3)}
    state, note = trials.issue(state, inputs, _draft(state, plan, advice.scheme, reason), _told(plan), after)
    assert state.plan is not None
    trial = Trial(
        plan_id=state.plan.id,
        place=compressing.place_of(plan),
        own_s=sharing.own_s(state.sharing, plan),
        added_s=_added_s(situation, advice.scheme),
        before=plan.exchange.name,
        after=advice.scheme,
        rate=rate,
        expected_gain=advice.expected_gain,
        least_kept=advice.least_kept,
        link=link,
        pace_s=exchange.pace_s(situation),
    )
    return replace(state, compressing=replace(state.compressing, trial=trial)), (note,)


def _added_s(situation: Situation, scheme: str) -> float:
    """What it may add to a step's seconds of a worker by itself: codecs, and without a bound what then runs beside it.

    How much of the cores is taken by what leaves during backward, and no longer after it, is what the trial is to find.
    """
    before_mib, after_mib = bucketed(situation.scheme)[1], bucketed(scheme)[1]
    if before_mib != after_mib:
        return math.inf if after_mib < before_mib else -math.inf
    return exchange.codec_s(situation, scheme) - exchange.codec_s(situation, situation.scheme)


def _situation(state: ControllerState, plan: Plan, topology: Topology, link: Link, step_s: float) -> Situation | None:
    """None where a member has not told what schemes cost it."""
    seen = membership.usable(state)
    builds = [seen[i].build for i in plan.worker_ids if i in seen]
    tables = [build.schemes for build in builds if build is not None]
    cuts = [build.buckets for build in builds if build is not None]
    if len(tables) < plan.num_members:
        return None
    formats: dict[str, SchemeCost] = {
        name: max((table[name] for table in tables), key=lambda cost: cost.seconds_a_million)
        for name in set.intersection(*map(set, tables))
    }
    if "topk" in formats:
        formats["topk"] = levels.gathered(formats["topk"], plan.num_members)
    now = bucketed(plan.exchange.name)[0]
    is_open = {*allowed(state)} - {*(AT_A_LOSS if topology.has_levels else LEVELS)}
    may_use = tuple(name for name in (*SCHEMES, *AT_A_LOSS) if name in is_open or name == now)  # its racks may be gone
    names = [n for n in dict.fromkeys((DENSE, *may_use, now)) if {*formats_of(n)} <= {*formats, None}]
    if not {DENSE, now} <= set(names):
        return None
    return Situation(
        scheme=plan.exchange.name,
        allowed=may_use,
        costs=levels.costs_of(names, formats, topology, max(build.gradient_bytes for build in builds if build)),
        num_ranks=plan.num_members,
        num_values=max(build.num_trained for build in builds if build is not None),
        step_s=step_s,
        link=link,
        buckets=cuts[0] if all(one == cuts[0] for one in cuts) else {},
        refused=state.compressing.refused,
        barred=state.compressing.barred,
        spent=state.compressing.spent,
        latency_s=max(exchange.LATENCY_S, topology.ring_latency_s, state.compressing.latency_s),
        relays=state.spec.resources.are_cpus_alone,
    )


def _tried(state: ControllerState, inputs: Inputs, plan: Plan, trial: Trial, now_s: float) -> Turned | None:
    """What a scheme on trial came to; where that may be the link's doing the one before is measured once more."""
    known = state.compressing
    now, link = sharing.rate(state.sharing, plan.id), compressing.link(known, plan)
    if now is None or link is None or now.num_steps < judging.JUDGE_STEPS:
        return None
    if trial.seen is not None:
        return _between(state, inputs, plan, trial, trial.seen, now, now_s)
    verdict = judging.judge(trial.rate, now, least_gain=trial.least_kept)
    if verdict is None:
        return None
    if sharing.standing(state.sharing, plan) is None and now.num_steps < judging.MAX_JUDGE_STEPS:
        return None  # somebody's own speed may be changing
    trial = replace(trial, added_s=compressing.added_s(trial, link))
    if compressing.is_spoilt(trial, plan, now, verdict, sharing.own_s(state.sharing, plan)):
        return replace(state, compressing=compressing.spoilt(known)), ()
    seen = _seen(state, plan, now, link, trial)
    if turning.is_sure(verdict, trial.expected_gain, is_link_faster=seen.is_link_faster):
        return _judged(state, inputs, plan, trial, seen, verdict, now_s)
    told = f"{verdict.gain:.2f} times as fast as with {trial.before} (expected: {trial.expected_gain:.2f})"
    reason = f"with {trial.after} steps are {told}; {trial.before} again for some, to tell that from a changed link"
    after = {"scheme": trial.before, "is_again": True}
    state, note = trials.issue(state, inputs, _draft(state, plan, trial.before, reason), _told(plan), after)
    assert state.plan is not None
    trial = replace(trial, plan_id=state.plan.id, seen=seen)
    return replace(state, compressing=replace(state.compressing, trial=trial)), (note,)


def _between(
    state: ControllerState, inputs: Inputs, plan: Plan, trial: Trial, seen: Seen, again: Rate, now_s: float
) -> Turned | None:
    """The verdict by steps with the scheme before, from before the trial and from after it (``again``)."""
    stretches = (trial.rate, seen.rate, again, trial.least_kept)
    if turning.is_open(*stretches):
        return None
    verdict = turning.judge_between(*stretches)
    if verdict is not None:
        is_kept = verdict.is_kept and (trial.is_gentler or turning.is_proven(*stretches))
        return _judged(state, inputs, plan, trial, seen, replace(verdict, is_kept=is_kept), now_s)
    drift = turning.drift_in_words(trial.rate, again)
    told = f"{trial.after} was not judged: meanwhile steps with {trial.before} became {drift}"
    known = replace(compressing.spoilt(state.compressing), reviewed_s=now_s, why=_sentence(told))
    known = replace(known, reviewed_link=trial.link)
    gain = seen.rate.samples_per_s / trial.rate.samples_per_s
    row = _row(state, inputs, trial, seen, Verdict(gain=gain, is_kept=False), told, {"is_judged": False})
    known = replace(known, num_judged=known.num_judged + 1)
    return replace(state, compressing=known), (Note(row),)


def _judged(
    state: ControllerState, inputs: Inputs, plan: Plan, trial: Trial, seen: Seen, verdict: Verdict, now_s: float
) -> Turned:
    """Keep the scheme on trial, or the one before: whichever it is, it is in force from now on."""
    is_back = trial.seen is not None
    of = f"with {trial.before}{' before and after' if is_back else ''}"
    told = f"with {trial.after} steps are {judging.in_words(verdict, of, trial.expected_gain, 'taken back')}"
    row = _row(state, inputs, trial, seen, verdict, told)
    known = state.compressing
    known = compressing.reviewed(replace(known, num_judged=known.num_judged + 1), plan, seen.link, now_s)
    known = replace(known, why=_sentence(row.reason))
    if not verdict.is_kept:
        return replace(state, compressing=compressing.refuse(known, trial, seen)), (Note(row),)
    known = compressing.kept(known, verdict.gain)
    # How fast other sizes and batches were with the scheme before tells nothing of them now.
    sizing = replace(state.sizing, memory={n: m for n, m in state.sizing.memory.items() if n == plan.num_members})
    state = replace(state, compressing=known, sizing=sizing, adapting=adapting.forgotten(state.adapting))
    if not is_back:
        return state, (Note(row),)
    draft = _draft(state, plan, trial.after, f"{trial.after} again: {row.reason}")
    state, note = trials.issue(state, inputs, draft, _told(plan), {"scheme": trial.after, "is_again": True})
    return state, (Note(row), note)


def _row(
    state: ControllerState,
    inputs: Inputs,
    trial: Trial,
    seen: Seen,
    verdict: Verdict,
    told: str,
    more: Mapping[str, object] = MappingProxyType({}),
) -> TimelineRow:
    judged = Judged(
        actor=ACTOR,
        before={"scheme": trial.before},
        after={"scheme": trial.after},
        rate=trial.rate,
        now=seen.rate,
        expected_gain=trial.expected_gain,
        verdict=verdict,
        told=told,
        more=more,
    )
    return trials.row_of(state, inputs, judged, state.compressing.num_judged + 1)


def _seen(state: ControllerState, plan: Plan, rate: Rate, link: Link, trial: Trial) -> Seen:
    """What the trial tells of steps, and of the link: it counts as faster where nobody can tell."""
    # Where the wire's own time is not known, what codecs are said to take is not to make the link look faster.
    most = link if link.wire_s is not None else replace(link, wire_s=link.exchange_s)
    found = _situation(state, plan, racks.known(state, plan) or levels.ONE_RACK, most, step_s=1.0)
    seen = Seen(rate=rate, link=link, is_link_faster=True, latency_s=state.compressing.latency_s)
    if found is None or bucketed(trial.before)[0] not in found.costs:
        return seen
    latency_s = None if link.wire_s is None else exchange.seen_latency_s(found, trial.before, trial.pace_s)
    is_faster = exchange.SLOWER * exchange.pace_s(found) < trial.pace_s
    return replace(seen, is_link_faster=is_faster, latency_s=seen.latency_s if latency_s is None else latency_s)


def _draft(state: ControllerState, plan: Plan, scheme: str, reason: str) -> Draft:
    cause = Cause(kind=TimelineKind.EXCHANGE, actor=ACTOR, reason=reason)
    return replace(trials.draft(state, plan, cause), exchange=Exchange.named(scheme, f"auto: {reason}"))


def _told(plan: Plan) -> dict[str, object]:
    return {"scheme": plan.exchange.name}


def _sentence(told: str) -> str:
    return f"{told[0].upper()}{told[1:]}."

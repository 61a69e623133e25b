"""Making the next plan: who is in it, whose state it takes, and what it says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workers.advisors import precision as precision_advisor
from workers.control import compressing, membership, sizing
from workers.control.costs import donor_of, tuning_of
from workers.control.decisions import ControllerState, Inputs, Note
from workers.exchange_options import filled
from workers.lr import LrPlan
from workers.plan import (
    Cause,
    CheckpointSource,
    Exchange,
    FreshSource,
    Goal,
    Member,
    MemberSource,
    Plan,
    PlanId,
    Source,
    Switch,
    TimelineKind,
    none_at_zero,
)
from workers.run_settings import Donor, RunSettings
from workers.status import CheckpointInfo, Phase, TimelineRow

REWARM_STEPS = 10
"""Steps within which a rate rises to what a larger batch asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What differs from the plan in force; everything else stays.

    ``parts`` are samples by worker id, ``global_batch`` those of all; where it is given and on trial,
    ``judged_batch`` is the one before it.
    """

    switch: Switch
    members: Sequence[str]
    source: Source
    cause: Cause
    goal: Goal = Goal.TRAIN
    is_new_group: bool = True
    is_new_lineage: bool = False
    settings: RunSettings | None = None
    saves: int = 0
    parts: Mapping[str, int] | None = None
    global_batch: int | None = None
    judged_batch: int | None = None
    exchange: Exchange | None = None


def issue(state: ControllerState, inputs: Inputs, draft: Draft, base: Plan | None) -> tuple[ControllerState, Note]:
    """Make ``draft`` the latest plan, with the sections of ``base`` (or of the spec), and its timeline row."""
    draft = _within_judged(state, draft, is_start=base is None)
    generation = _highest_generation(state) + 1 if draft.is_new_group or base is None else base.generation
    lineage = state.furthest[0] if base is None else base.lineage
    if draft.is_new_lineage:
        lineage = max(state.furthest[0], state.plan.lineage if state.plan else 0) + 1
    wish = inputs.direction.settings if base is None else draft.settings
    if base is not None and draft.global_batch is not None:
        base = replace(_rebatched(state, base, draft.global_batch), judged_batch=draft.judged_batch)
    if base is not None and draft.exchange is not None:
        base = replace(base, exchange=draft.exchange)
    sections = _tuned(state, base, wish) if base else _begun(state, draft, wish)
    plan = replace(
        sections,
        id=PlanId(state.term, state.next_n),
        switch=draft.switch,
        goal=draft.goal,
        generation=generation,
        lineage=lineage,
        source=draft.source,
        saves=inputs.direction.saves if base is None else max(base.saves, draft.saves),
        until=line(state, inputs),
        most_micro=_most_micro(state),
        members=_ranked(state, draft, base, sections.global_batch),
        cause=draft.cause,
        failures=state.failures,
    )
    after = replace(
        state,
        plan=plan,
        sharing=state.sharing if draft.global_batch is None else replace(state.sharing, why=""),
        next_n=state.next_n + 1,
        is_broken=False,
        why_broken="",
        departed={},
        settled_at=None,
        short_since_s=None,
        ready_since_s=None,
    )
    return after, Note(_row(state, inputs, plan, base))


def _most_micro(state: ControllerState) -> int | None:
    """The bound on forward passes that is known by now, also to earlier controllers; None where the spec fixes it."""
    if isinstance(state.spec.batch.micro_size, int):
        return None
    known = (state.fatal.most, state.plan.most_micro if state.plan else None)
    return min((most for most in known if most is not None), default=None)


def _within_judged(state: ControllerState, draft: Draft, *, is_start: bool) -> Draft:
    """A new group begins with the latest scheme, in force yet or not; its row tells where that was not judged yet.

    Not once more where none survived and nobody got further by it: memory may not do for that scheme.
    """
    plan = state.plan
    if not draft.is_new_group or plan is None or (is_start and state.num_launches > 0):
        return draft
    exchange = compressing.begins_with(state.compressing, plan.exchange)
    if plan.exchange.name == exchange.name:
        return replace(draft, exchange=exchange)
    told = f"gradients travel as {exchange.name} again, as {plan.exchange.name} was not judged yet"
    return replace(draft, exchange=exchange, cause=replace(draft.cause, reason=f"{draft.cause.reason}; {told}"))


def _ranked(state: ControllerState, draft: Draft, base: Plan | None, global_batch: int) -> tuple[Member, ...]:
    """The draft's members in its order, with their parts and what labels say of their nodes' racks.

    What the old plan said of one stays with it, and a newcomer, whose speed nobody knows, gets the mean of its peers.
    """
    old = {member.worker_id: member.weight for member in base.members} if base else {}
    weights = old if draft.parts is None else {worker_id: float(part) for worker_id, part in draft.parts.items()}
    peers = [weights[worker_id] for worker_id in draft.members if worker_id in weights]
    mean = sum(peers) / len(peers) if sum(peers) > 0 else 1.0
    racks = {s.worker_id: s.build.rack for s in membership.statuses(state) if s.build is not None}
    shares = none_at_zero(global_batch, [weights.get(i, mean) for i in draft.members])
    return tuple(
        Member(worker_id=i, rank=rank, weight=weight, rack=racks.get(i, ""))
        for rank, (i, weight) in enumerate(zip(draft.members, shares, strict=True))
    )


def _first_sections(state: ControllerState, worker_ids: Sequence[str]) -> Plan:
    """The sections that the spec asks for, with ``auto`` resolved from what the workers measured."""
    spec = state.spec
    seen = membership.usable(state)
    tables = [b.device_seconds for i in worker_ids if (b := seen[i].build) is not None]
    asked = spec.exchange
    assert isinstance(spec.precision, str)
    return Plan(
        id=PlanId(0, 0),
        switch=Switch.NOW,
        generation=0,
        lineage=0,
        source=FreshSource(),
        members=(),
        global_batch=spec.batch.global_size,
        lr=LrPlan(
            lr=spec.optimizer.lr,
            base_batch=spec.base_batch,
            rule=spec.batch.lr_rule,
            warmup_fraction=spec.lr_schedule.warmup_fraction,
            decay=spec.lr_schedule.decay,
        ),
        precision=precision_advisor.choose_precision(spec.precision, tables),
        exchange=_first_exchange(state)
        if asked.scheme == "auto"
        else Exchange(scheme=asked.scheme, options=filled(asked.scheme, asked.options)),
        cause=Cause(kind=TimelineKind.START, actor="controller", reason=""),
    )


def _first_exchange(state: ControllerState) -> Exchange:
    """As it was judged last, also in attempts before this one; but for memory, as in ``_within_judged``."""
    judged = state.compressing.judged
    if judged and state.num_launches == 0:
        return Exchange.named(judged, "auto: judged last before this start, and weighed anew by what is measured now")
    return Exchange(why="auto: as they are, until it was measured what that takes")


def _begun(state: ControllerState, draft: Draft, wish: RunSettings | None) -> Plan:
    """The sections of a start without survivors."""
    plan, source = _ordered(_first_sections(state, draft.members), wish), draft.source
    if draft.exchange is not None:
        plan = replace(plan, exchange=draft.exchange)
    if isinstance(source, CheckpointSource) and source.global_batch:
        return replace(plan, global_batch=source.global_batch)
    return plan


def _tuned(state: ControllerState, plan: Plan, wish: RunSettings | None) -> Plan:
    """With what an order changes while the group trains on: a rate that rises is warmed up again.

    The state of another job comes with a rate of its own, which nobody here knows.
    """
    ordered, left = _ordered(plan, wish), membership.num_left(state)
    if wish is None or wish.donor is not None or left is None:
        return ordered
    cursor = max(s.cursor or 0 for s in membership.statuses(state))
    noise = state.adapting.noise_scale
    last = plan.lr.at(cursor, cursor + left, plan.global_batch, noise)
    return replace(ordered, lr=ordered.lr.eased(last, cursor, cursor + left, ordered.global_batch, noise))


def _rebatched(state: ControllerState, plan: Plan, global_batch: int) -> Plan:
    """With another batch, and a rate that is warmed up again for a few steps where its rule raises it."""
    if global_batch == plan.global_batch:
        return plan
    left = membership.num_left(state)
    cursor = max((s.cursor or 0 for s in membership.statuses(state)), default=0)
    changed = replace(plan, global_batch=global_batch)
    if left is None:
        return changed
    noise = state.adapting.noise_scale
    last = plan.lr.at(cursor, cursor + left, plan.global_batch, noise)
    eased = plan.lr.eased(last, cursor, cursor + left, global_batch, noise, most_samples=REWARM_STEPS * global_batch)
    return replace(changed, lr=eased)


def _ordered(plan: Plan, wish: RunSettings | None) -> Plan:
    if wish is None:
        return plan
    lr = replace(plan.lr, lr=wish.lr, ramp=None)
    return replace(plan, settings=wish.n, global_batch=wish.global_batch, judged_batch=None, lr=lr)


def _highest_generation(state: ControllerState) -> int:
    seen = [0]
    for status in membership.statuses(state):
        seen += [p.generation for p in (status.plan, status.pending) if p is not None]
        if status.generation is not None:
            seen.append(status.generation)
    return max([*seen, state.plan.generation if state.plan else 0])


def start_source(state: ControllerState, inputs: Inputs) -> Source:
    """Where a start without survivors takes its state from; what was saved before the newest order is out of date."""
    latest = inputs.latest
    donor = wanted_donor(state, inputs, latest.settings if latest else 0)
    if donor is not None:
        return donor
    if latest is None:
        return FreshSource()
    return CheckpointSource(latest.path, latest.step, latest.cursor, _adapted_batch(state, inputs, latest))


def _adapted_batch(state: ControllerState, inputs: Inputs, latest: CheckpointInfo) -> int:
    """The batch to which the service had changed by then, 0 where it had not, or where somebody asked for one since."""
    wish = inputs.direction.settings
    is_past = wish is not None and latest.settings < wish.n
    asked = wish.global_batch if wish is not None else state.spec.batch.global_size
    may_adapt = state.spec.batch.adapt == "goodput" and not is_past
    return latest.global_batch if may_adapt and latest.global_batch != asked else 0


def wanted_donor(state: ControllerState, inputs: Inputs, num_met: int) -> Donor | None:
    """Whose state the newest order wants, where orders up to ``num_met`` are carried out; None where nobody's is."""
    wish = inputs.direction.settings
    return None if wish is None or wish.n <= max(num_met, state.spurned) else wish.donor


def line(state: ControllerState, inputs: Inputs) -> int | None:
    """Where members are to stand still; None where nobody wishes it, or where they have stood too long."""
    ages_s = [s.phase_age_s for s in membership.usable(state).values() if s.phase is Phase.HELD]
    return None if max(ages_s, default=0.0) > state.settings.line_s else inputs.direction.until


def member_source(state: ControllerState) -> MemberSource | None:
    """The survivor that is furthest ahead, or None when nobody holds state."""
    for worker_id, status in membership.holders(state).items():
        assert status.round is not None
        return MemberSource(worker_id, status.round)
    return None


def base_plan(state: ControllerState, source: Source) -> Plan | None:
    """The plan in force at the source: its sections are the ones that its state was trained under."""
    if isinstance(source, MemberSource):
        return membership.usable(state)[source.worker_id].plan
    return None


def progress_step(state: ControllerState) -> int:
    """Progress in steps of the spec: samples drawn over ``batch.global_size``."""
    cursor = max((s.cursor or 0 for s in membership.statuses(state)), default=0)
    return cursor // state.spec.batch.global_size


def _row(state: ControllerState, inputs: Inputs, plan: Plan, base: Plan | None) -> TimelineRow:
    tuned_before, tuned_after = _tuning(base, plan)
    is_regrouped = base is None or plan.generation != base.generation or plan.settings == base.settings
    before, after = _membership(state, plan, base) if is_regrouped else ({}, {})
    return TimelineRow(
        key=f"plan/{plan.id.term}/{plan.id.n}",
        kind=plan.cause.kind,
        time=inputs.unix_s,
        step=progress_step(state),
        actor=plan.cause.actor,
        reason=plan.cause.reason,
        before={**before, **tuned_before},
        after={**after, **tuned_after},
    )


def _membership(
    state: ControllerState, plan: Plan, base: Plan | None
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    old = state.plan or base
    after = {
        "workers": plan.num_members,
        "generation": plan.generation,
        "lineage": plan.lineage,
        **_expected(state, plan, old),
        **donor_of(plan),
        **(_choices(plan) if base is None else {}),
    }
    return {"workers": old.num_members if old and state.has_trained else 0, **_lost(state)}, after


def _tuning(base: Plan | None, plan: Plan) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """What an order changed of batch and learning rate."""
    if base is None or base.settings == plan.settings:
        return {}, {}
    before, after = tuning_of(base), tuning_of(plan)
    changed = [key for key in after if before[key] != after[key]]
    return {key: before[key] for key in changed}, {key: after[key] for key in changed}


def _expected(state: ControllerState, plan: Plan, old: Plan | None) -> dict[str, object]:
    """What a size that the job asked for shall bring; what it brought is told by a row of its own."""
    ask = state.sizing.ask
    if ask is None or old is None or plan.cause.actor != sizing.ACTOR:
        return {}
    return {"expected_gain": round(ask.expected(old.num_members, plan.num_members), 3)}


def _choices(plan: Plan) -> dict[str, object]:
    """What the spec's ``auto`` became, and why."""
    precision, exchange = plan.precision, plan.exchange
    return {
        "precision": {"format": precision.format.value, "why": precision.why},
        "communication": {"scheme": exchange.scheme, **dict(exchange.options), "why": exchange.why},
    }


def _lost(state: ControllerState) -> dict[str, object]:
    """The members of the latest plan that are gone, who they were and where; and the nodes of those that are not."""
    seen = membership.usable(state)
    gone = [m for m in (state.plan.members if state.plan else ()) if m.worker_id not in seen]
    rows = [{"worker_id": m.worker_id, "rank": m.rank, "node_id": state.nodes.get(m.worker_id, "")} for m in gone]
    spared = {state.nodes.get(m.worker_id, "") for m in (state.plan.members if state.plan else ()) if m not in gone}
    return {"lost": rows, "spared": sorted(spared - {""})} if rows else {}

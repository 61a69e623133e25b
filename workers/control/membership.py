"""Who is there, who holds what, and who must go: a controller's facts about workers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from workers.control.decisions import BOUND_SETTINGS, ControllerState, Inputs, WorkerFacts
from workers.plan import CheckpointSource, Plan, Switch
from workers.run_settings import Donor
from workers.status import START_PHASES, Phase, StopCause, WorkerStatus

LATE_TURN_S = 2.0
"""A turn later than this after the last was the controller's own fault, not the workers' silence."""

_WORKING = frozenset({Phase.DATA, Phase.COMPUTE, Phase.COMMIT, Phase.EVAL, Phase.SAVE})
OWN_PHASES = START_PHASES | _WORKING
"""Phases in which a worker waits for nobody else, so that a bound blames it alone."""


def observe(state: ControllerState, inputs: Inputs, now_s: float) -> ControllerState:
    """Fold what was heard: newest statuses, losses, the furthest round, the highest plan."""
    late_s = 0.0 if state.turned_s is None else max(0.0, now_s - state.turned_s - LATE_TURN_S)
    workers = {i: _excused(f, late_s) for i, f in state.workers.items()}
    if inputs.was_cut_off:
        workers = {i: replace(f, heard_s=f.heard_s and now_s, refused_since_s=None) for i, f in workers.items()}
    for worker_id in inputs.listed or ():
        workers.setdefault(worker_id, WorkerFacts(worker_id=worker_id, started_s=now_s, heard_s=now_s))
    for worker_id, status in inputs.statuses.items():
        facts = workers.get(worker_id)
        if facts is not None and (facts.status is None or status.seq > facts.status.seq):
            workers[worker_id] = replace(facts, status=status, heard_s=now_s)
    workers = {i: _refusing(f, now_s, is_refusing=i in inputs.refusing) for i, f in workers.items()}
    departed = dict(state.departed)
    for worker_id, why in inputs.lost.items():
        gone = workers.pop(worker_id, None)
        if gone is not None and gone.stopping_since_s is None and worker_id != state.sharing.relief.stand_in:
            departed[worker_id] = gone.kill or why
    avoided = frozenset(node.node_id for node in inputs.direction.avoid)
    state = replace(state, workers=workers, departed=departed, avoided=avoided, turned_s=now_s)
    return _learn(state, inputs)


def _excused(facts: WorkerFacts, late_s: float) -> WorkerFacts:
    return facts if facts.heard_s is None or late_s == 0.0 else replace(facts, heard_s=facts.heard_s + late_s)


def _refusing(facts: WorkerFacts, now_s: float, *, is_refusing: bool) -> WorkerFacts:
    if is_refusing == (facts.refused_since_s is not None):
        return facts
    return replace(facts, refused_since_s=now_s if is_refusing else None)


def _learn(state: ControllerState, inputs: Inputs) -> ControllerState:
    """Take over what statuses and the store tell beyond a worker: rounds, plans, the final checkpoint."""
    furthest = max(state.furthest, _stored(state, inputs))
    best_cursor = max((s.cursor or 0 for s in statuses(state)), default=0)
    plan, failures, final, restored = state.plan, state.failures, state.final_checkpoint, state.restored
    for status in statuses(state):
        if status.lineage is not None and status.round is not None:
            furthest = max(furthest, (status.lineage, status.round))
        for seen in filter(None, (status.plan, status.pending)):
            failures = max(failures, seen.failures)
            plan = seen if plan is None or seen.id > plan.id else plan
            if isinstance(seen.source, CheckpointSource | Donor):
                restored = max(restored, (seen.lineage, seen.source.cursor))
        final = next((c for c in status.checkpoints if c.is_final), final)
    told = {s.worker_id: s.build.node_id for s in statuses(state) if s.build is not None}
    nodes = {**inputs.nodes, **state.nodes, **told}
    learned = (furthest, plan, failures, final, restored, nodes)
    if learned == (state.furthest, state.plan, state.failures, state.final_checkpoint, state.restored, state.nodes):
        return state
    progressed = furthest > state.furthest
    return replace(
        state,
        furthest=furthest,
        plan=plan,
        failures=failures,
        final_checkpoint=final,
        restored=restored,
        nodes=nodes,
        num_formed=0 if progressed else state.num_formed,
        num_launches=0 if best_cursor > state.best_cursor else state.num_launches,
        best_cursor=max(best_cursor, state.best_cursor),
    )


def _stored(state: ControllerState, inputs: Inputs) -> tuple[int, int]:
    """The furthest round that the store or the storage knows of, so that no lineage is used twice."""
    latest = inputs.latest
    saved = (latest.lineage, latest.round) if latest and latest.attempt == state.key.attempt else (0, 0)
    return max(inputs.acked.rounds, saved)


def statuses(state: ControllerState) -> list[WorkerStatus]:
    """The newest status of every worker that has answered."""
    return [f.status for f in state.workers.values() if f.status is not None]


def num_left(state: ControllerState) -> int | None:
    """Samples that are still to be drawn, None while no worker has told."""
    totals = [s.build.total_samples for s in statuses(state) if s.build is not None]
    cursors = [s.cursor for s in statuses(state) if s.cursor is not None]
    return max(totals) - max(cursors) if totals and cursors else None


def usable(state: ControllerState) -> dict[str, WorkerStatus]:
    """Workers that a plan may name or has named: answering, not failed, not on their way out."""
    return {
        i: f.status
        for i, f in state.workers.items()
        if f.status is not None and f.stopping_since_s is None and f.kill is None and f.status.phase is not Phase.FAILED
    }


def holders(state: ControllerState) -> dict[str, WorkerStatus]:
    """Usable workers that hold state of the newest lineage alive, furthest first."""
    alive = {i: s for i, s in usable(state).items() if s.round is not None}
    lineage = max((s.lineage or 0 for s in alive.values()), default=0)
    old_ranks = {m.worker_id: m.rank for m in state.plan.members} if state.plan else {}
    order = sorted(
        (s for s in alive.values() if s.lineage == lineage),
        key=lambda s: (-(s.round or 0), old_ranks.get(s.worker_id, len(old_ranks)), _age(s.worker_id)),
    )
    return {s.worker_id: s for s in order}


def is_held(state: ControllerState, statuses: Mapping[str, WorkerStatus], lost: Collection[str]) -> bool:
    """Whether somebody usable holds state, as ``holders`` will say once what was heard is folded in."""
    left = {i: f for i, f in state.workers.items() if i not in lost and f.stopping_since_s is None and f.kill is None}
    told = (statuses.get(i, f.status) for i, f in left.items())
    return any(s is not None and s.phase is not Phase.FAILED and s.round is not None for s in told)


def ready(state: ControllerState) -> list[str]:
    """Workers that have built the task and hold no state yet, oldest first."""
    found = [i for i, s in usable(state).items() if s.round is None and s.phase in (Phase.READY, Phase.STOPPED)]
    return sorted(found, key=_age)


def coming(state: ControllerState) -> list[str]:
    """Workers started and not yet ready: waiting for a place, or building."""
    return [
        i
        for i, f in state.workers.items()
        if f.stopping_since_s is None and f.kill is None and (f.status is None or is_starting(f.status))
    ]


def is_starting(status: WorkerStatus) -> bool:
    """Whether a worker has yet to become ready for the first time."""
    return status.phase in START_PHASES and status.round is None


def _age(worker_id: str) -> tuple[int, int]:
    term, _, n = worker_id.partition(".")
    return (int(term), int(n))


def in_group(state: ControllerState) -> dict[str, int]:
    """Workers that are in, or entering, a process group, with its generation."""
    return {
        i: f.status.generation
        for i, f in state.workers.items()
        if f.status is not None and f.status.generation is not None and f.kill is None
    }


def not_halted(state: ControllerState, plan: Plan) -> list[str]:
    """Workers that may still train or switch under a plan up to ``plan``.

    Only when this is empty are the reports of a broken group final. Workers that never entered a plan
    and are not named by this one hold no state, and the rendezvous refuses them.
    """
    return [
        i
        for i, s in usable(state).items()
        if (plan.member(i) is not None or s.plan is not None) and (s.halted < plan.id or s.generation is not None)
    ]


def is_settled(state: ControllerState, plan: Plan) -> bool:
    """Whether every member reports ``plan`` in force (and its generation, where it trains)."""
    seen = usable(state)
    return all(
        (s := seen.get(m.worker_id)) is not None and s.plan is not None and s.plan.id == plan.id for m in plan.members
    )


def has_taken_over(state: ControllerState, plan: Plan) -> bool:
    """Whether every member holds the state that ``plan`` takes from another job, where it takes one."""
    seen = usable(state)
    return not isinstance(plan.source, Donor) or all(seen[i].lineage == plan.lineage for i in plan.worker_ids)


def breach(state: ControllerState) -> str | None:
    """Why the group of the latest plan cannot go on, or None while it can."""
    plan = state.plan
    if plan is None:
        return None
    seen = usable(state)
    for member in plan.members:
        status = seen.get(member.worker_id)
        if status is None:
            return f"worker {member.worker_id} is gone"
        if _left(status, plan):
            assert status.stop is not None
            return f"worker {member.worker_id} left its round ({status.stop.cause})"
    peers = set(in_group(state).values())
    for worker_id in state.departed:
        if worker_id not in seen and peers and not is_settled(state, plan):
            return f"worker {worker_id} was lost while plan {plan.id.term}.{plan.id.n} was being agreed"
    return None


def _left(status: WorkerStatus, plan: Plan) -> bool:
    """Whether a member stopped and will not enter ``plan`` by itself."""
    if status.phase is not Phase.STOPPED or status.stop is None or status.stop.cause is StopCause.REMOVED:
        return False
    has_entered = status.plan is not None and status.plan.id >= plan.id
    return plan.switch is Switch.AGREED or has_entered


def overdue(state: ControllerState, now_s: float) -> dict[str, str]:
    """Workers to be killed now, each with why: stuck in a phase of their own, or slow to stop."""
    found = {i: _slow_stop(state, f, now_s) or _stuck(state, f) for i, f in state.workers.items() if f.kill is None}
    return {i: why for i, why in found.items() if why is not None}


def _slow_stop(state: ControllerState, facts: WorkerFacts, now_s: float) -> str | None:
    if facts.stopping_since_s is None or now_s - facts.stopping_since_s <= state.settings.kill_s:
        return None
    return f"did not stop within {state.settings.kill_s:.0f} s"


def _stuck(state: ControllerState, facts: WorkerFacts) -> str | None:
    status = facts.status
    if status is None or status.phase not in OWN_PHASES:
        return None
    bound_s = state.settings.phase_bounds_s.get(status.phase)
    if bound_s is None or status.phase_age_s <= bound_s:
        return None
    setting = BOUND_SETTINGS.get(status.phase)
    bound = f"bound {bound_s:.0f} s, by the setting {setting}" if setting else f"bound {bound_s:.0f} s"
    reading = f", reading {status.reading}" if status.reading else ""
    return f"stalled: in phase {status.phase} for {status.phase_age_s:.0f} s{reading} ({bound})"


def is_group_stuck(state: ControllerState) -> str | None:
    """Whether members wait for each other beyond the bounds of the phases that they share."""
    plan = state.plan
    if plan is None:
        return None
    seen = usable(state)
    has_parted = all(s.generation in (None, plan.generation) for i, s in seen.items() if plan.member(i) is not None)
    may_meet = has_parted and is_settled(state, plan)
    for worker_id, status in seen.items():
        if status.phase not in (Phase.RENDEZVOUS, Phase.SYNC, Phase.EXCHANGE) or plan.member(worker_id) is None:
            continue
        if status.phase is Phase.RENDEZVOUS and not may_meet:
            continue  # a newcomer waits for a boundary that the others have not reached, or hand something over at
        bound_s = state.settings.phase_bounds_s.get(status.phase)
        if bound_s is None or status.phase_age_s <= bound_s:
            continue  # before all others are looked at: most turns find everybody in an exchange
        age_s = _all_wait_s(seen.values(), status) if status.phase is Phase.EXCHANGE else status.phase_age_s
        if age_s > bound_s:
            return f"worker {worker_id} waited {age_s:.0f} s in {status.phase}"
    return None


def _all_wait_s(seen: Iterable[WorkerStatus], status: WorkerStatus) -> float:
    """For how long a worker and all others of its group have been waiting: 0 while one computes, which is bounded.

    A part may have many micro-batches, on a worker that takes many times as long for each as another does.
    """
    group = [other for other in seen if other.generation == status.generation]
    if any(other.phase in _WORKING for other in group):
        return 0.0
    return min(other.phase_age_s for other in group if other.phase is Phase.EXCHANGE)

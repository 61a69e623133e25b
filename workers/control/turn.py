"""One cycle of the controller: what is known and was heard goes in, a new state and actions come out.

Pure: no clock, no Ray. The order of the rules is the order of truth: membership first, then the end
that somebody asked for, then changes that are merely wanted. A rule that acts ends the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from workers.assignment import JobKey
from workers.control import (
    adapt,
    balance,
    compress,
    ending,
    evacuate,
    forecasting,
    killed,
    membership,
    planning,
    racks,
    reach,
    regroup,
    relieve,
    resize,
    retune,
    sizing,
    starts,
    trials,
)
from workers.control.decisions import (
    Action,
    ControllerState,
    ControlSettings,
    HaltWorker,
    Inputs,
    KillWorker,
    Note,
    SupersedeGroup,
)
from workers.plan import Plan, TimelineKind
from workers.spec import JobSpec
from workers.status import RunPhase, TimelineRow

Turned: TypeAlias = tuple[ControllerState, tuple[Action, ...]]
Rule: TypeAlias = Callable[[ControllerState, Inputs, float], Turned | None]


def begin(key: JobKey, term: int, spec: JobSpec, settings: ControlSettings, now_s: float) -> ControllerState:
    """The state of a controller that knows nothing yet; its first turn needs ``Inputs.listed``."""
    return ControllerState(key=key, term=term, spec=spec, settings=settings, begun_s=now_s)


def turn(state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    """One cycle. ``now_s`` is the controller's own monotonic clock.

    Call it whenever something was heard, and at least once a second besides. Every action may be
    carried out late, twice or not at all: the next turns ask again for what is still missing.
    Most turns change next to nothing, and a state has forty fields: what a step leaves as it was is not copied.
    """
    if state.outcome is not None:
        return state, ()
    before = state
    state, told = starts.observe(before, membership.observe(before, inputs, now_s), inputs, now_s)
    state, bounded = killed.observe(before, state, inputs, now_s)
    state, unrelieved = relieve.observe(before, state, inputs, now_s)
    state, kills = _kill(state, inputs, now_s)
    state = adapt.observe(balance.observe(ending.noted(state, inputs), inputs), inputs)
    state, doubts = racks.observe(compress.observe(state, inputs), inputs)
    state = forecasting.foresee(state, now_s)
    state, notes = _size(state, inputs, now_s)
    actions: tuple[Action, ...] = (*told, *bounded, *unrelieved, *kills, *doubts, *notes)
    for rule in _RULES:
        turned = rule(state, inputs, now_s)
        if turned is not None:
            state, more = turned
            actions += more
            break
    return _offered(_phased(state)), actions


def _kill(state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    """Give up workers; those that are only out of reach no sooner than Ray's head has answered since."""
    questions = reach.questions(state, inputs, now_s)
    verdicts = {**membership.overdue(state, now_s), **reach.lost(state, inputs, now_s)}
    if not verdicts and not any(facts.kill for facts in state.workers.values()):
        return state, questions
    workers, departed = dict(state.workers), dict(state.departed)
    for worker_id, why in verdicts.items():
        facts = workers[worker_id]
        if facts.stopping_since_s is None and worker_id != state.sharing.relief.stand_in:
            departed[worker_id] = why
        workers[worker_id] = replace(facts, kill=why, stopping_since_s=now_s)
    for worker_id, facts in list(workers.items()):
        if facts.kill and facts.stopping_since_s is not None and now_s - facts.stopping_since_s > state.settings.kill_s:
            del workers[worker_id]  # its node is out of reach; it is fenced by the generation it is not in
    counted = {i: why for i, why in verdicts.items() if i != state.sharing.relief.stand_in}
    hung = starts.hung(state, counted)
    later = {i: why for i, why in counted.items() if i not in hung}
    state = regroup.count_stalls(replace(state, workers=workers, departed=departed), later)
    state, notes = starts.count_hung(state, inputs, hung, now_s)
    return state, (*questions, *notes, *(KillWorker(i, why) for i, why in verdicts.items()))


def _size(state: ControllerState, inputs: Inputs, now_s: float) -> Turned:
    """Learn how fast the job is at its size, and weigh another one while nothing else is under way."""
    found = [record for status in inputs.statuses.values() for record in status.records]
    known = sizing.observe(state.sizing, found, state.plan, now_s)
    plan, standing = state.plan, None
    is_calm = state.has_trained and state.ending is None and not state.is_broken and not state.is_adopting
    if plan is not None and is_calm and membership.is_settled(state, plan) and not _is_weighing(state, plan):
        standing = sizing.Standing(plan=plan, num_left=membership.num_left(state), forecast=state.forecast)
    known, judged = sizing.consider(known, inputs.direction, standing, now_s, inputs.unix_s)
    state = state if known is state.sizing else replace(state, sizing=known)
    return state, () if judged is None else (Note(trials.row_of(state, inputs, judged, known.num_judged)),)


def _is_weighing(state: ControllerState, plan: Plan) -> bool:
    return balance.is_weighing(state, plan) or compress.is_weighing(state, plan)


def _adopt(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """A new term decides nothing before every worker it found has acknowledged it, or is gone."""
    if not state.is_adopting:
        return None
    late = [i for i, f in state.workers.items() if f.kill is None and (f.status is None or f.status.term < state.term)]
    if late:
        return state, ()
    state = replace(state, is_adopting=False, departed={})
    if not state.workers:
        return state, ()
    row = TimelineRow(
        key=f"term/{state.term}",
        kind=TimelineKind.CONTROLLER_LOST,
        time=inputs.unix_s,
        step=planning.progress_step(state),
        actor="service",
        reason=f"controller {state.term} adopted {len(state.workers)} workers, which went on training",
        after={"workers": len(state.workers)},
        cost_s=0.0,
        steps_lost=0,
    )
    has_trained = any(s.round for s in membership.statuses(state))
    return replace(state, has_trained=has_trained), (Note(row),)


def _take_down(state: ControllerState, inputs: Inputs, now_s: float) -> Turned | None:
    """When the latest plan's group cannot go on, get everybody out of it before anything else."""
    if state.ending is not None and not state.ending.must_save:
        return None
    if not state.is_broken:
        why = membership.breach(state) or membership.is_group_stuck(state)
        if why is None or ending.is_complete(state):
            return None
        state = replace(state, is_broken=True, why_broken=why, num_formed=state.num_formed + 1)
    assert state.plan is not None
    plan = state.plan
    if late := membership.not_halted(state, plan):
        halts: tuple[Action, ...] = tuple(HaltWorker(i, plan.id) for i in late)
        # Replacements start meanwhile: a survivor may be deep in a long step of the user's code.
        filled, begun = (state, ()) if state.ending else resize.fill(state, resize.wanted(state, inputs), now_s)
        return filled, (SupersedeGroup(plan.generation), *halts, *begun)
    return ending.carry_out(state, inputs, now_s) or regroup.regroup(state, inputs, now_s)


_RULES: tuple[Rule, ...] = (
    _adopt,
    regroup.drop_failed,
    _take_down,
    ending.carry_out,
    regroup.launch,
    resize.settle,
    evacuate.evacuate,
    retune.retune,
    relieve.relieve,
    resize.resize,
    adapt.adapt,
    balance.balance,
    compress.compress,
)


def _phased(state: ControllerState) -> ControllerState:
    phase = _phase(state)
    return state if phase is state.phase else replace(state, phase=phase)


def _phase(state: ControllerState) -> RunPhase:
    """What the attempt is doing, in the words of the job's states."""
    if state.outcome is not None:
        return RunPhase.ENDED
    if state.ending is not None:
        return RunPhase.STOPPING
    if not state.has_trained:
        return RunPhase.STARTING
    num_able = len(membership.holders(state))
    waits = state.is_broken or state.plan is None
    nobody = num_able == 0 or (waits and num_able < state.spec.workers.min)
    return RunPhase.RECOVERING if nobody else RunPhase.RUNNING


def _offered(state: ControllerState) -> ControllerState:
    plan = None if state.is_broken or state.is_adopting else state.plan
    offers = {} if plan is None else {i: plan for i, f in state.workers.items() if f.kill is None}
    return state if offers == state.offers else replace(state, offers=offers)

"""What a controller knows of its workers' speeds and of the steps under each split, and when to look at it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from workers.advisors import judging, scaling, shares
from workers.advisors.judging import Rate
from workers.advisors.speed import Speed
from workers.plan import Plan, PlanId
from workers.status import RoundRecord, WorkerStatus

ACTOR = "shares"

MOST_DOUBLINGS = 5
"""Parts are looked at again half as often with every change that did not pay, but no less often than this makes it."""

MIN_LOADS = 3
"""Runs of rounds under the plan in force that every worker must have told before its parts are looked at."""

NUM_BEFORE = 7
"""Steps before a change that it is measured by where a worker has another speed. That is believed after three runs of
three rounds at least, of which the first may hold some at the old one: what is older may be from before."""

MAX_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One worker's speed, the last of its runs that was counted, and how many of them under which plan."""

    speed: Speed = field(default_factory=Speed)
    n: int = 0
    plan_id: PlanId = PlanId(0, 0)
    num_loads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A split that is being measured under the plan ``plan_id``, what it shall bring, and at least must.

    ``before`` and ``after`` are parts by worker id, in the order of the ranks; ``rate`` is the speed before.
    """

    plan_id: PlanId
    before: Mapping[str, int]
    after: Mapping[str, int]
    rate: Rate
    expected_gain: float
    least_kept: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """``stand_in`` is being started for ``slow``, or both are empty; ``nodes`` are where the slow ones ran so far.

    One that ``is_beside`` runs on the slow one's own node, as no other has room; on nodes ``tried`` one did before.
    Stand-ins that ``came`` train in the place of others; ``num_vain`` got a place and could not be made ready, or
    were slow as well. Of those ``told`` the job's owner knows that they could not be relieved.
    """

    slow: str = ""
    stand_in: str = ""
    is_beside: bool = False
    nodes: frozenset[str] = frozenset()
    tried: frozenset[str] = frozenset()
    came: frozenset[str] = frozenset()
    num_vain: int = 0
    told: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Speeds by worker id; steps as (samples a second, seconds) under the plan ``plan_id``; when parts were reviewed.

    Speeds and steps of samples with lengths are as if these were as long as in the mean: ``num_tokens`` in
    ``num_samples``. ``wire_bytes_per_s`` is what each member sends, by the newest step, ``most_bytes_per_s`` the most
    that it was seen to send while gradients were under way; both without what was sent for rounds done again.
    ``reviewed_s`` is the controller's monotonic clock, ``reviewed_generation`` and ``num_shifts`` what they were then:
    another group, or a worker whose speed has changed, is looked at without delay. ``told`` are the workers that were
    named as stragglers and hold the others up still, ``num_told`` is how often one was. ``why`` tells why the parts
    stay, empty while they do not.
    """

    known: Mapping[str, Known] = field(default_factory=dict)
    last: tuple[int, int] = (0, 0)
    plan_id: PlanId = PlanId(0, 0)
    steps: tuple[tuple[float, float], ...] = ()
    num_samples: int = 0
    num_tokens: float = 0.0
    wire_bytes_per_s: float | None = None
    most_bytes_per_s: float = 0.0
    reviewed_s: float = float("-inf")
    reviewed_generation: int = 0
    num_shifts: int = 0
    num_failed: int = 0
    num_judged: int = 0
    trial: Trial | None = None
    told: frozenset[str] = frozenset()
    num_told: int = 0
    relief: Relief = field(default_factory=Relief)
    why: str = ""


def observe(sharing: Sharing, statuses: Iterable[WorkerStatus]) -> Sharing:
    """Fold in what workers tell: each run of rounds and each record once."""
    told = list(statuses)
    found = [record for status in told for record in status.records if record.key > sharing.last]
    for record in sorted(found, key=lambda record: record.key):
        if record.key > sharing.last:
            sharing = _stepped(sharing, record)
    known = dict(sharing.known)
    for status in told:
        if status.loads:
            known[status.worker_id] = _heard(sharing, known.get(status.worker_id, Known()), status)
    return replace(sharing, known=known) if known != sharing.known else sharing


def _heard(sharing: Sharing, known: Known, status: WorkerStatus) -> Known:
    for load in status.loads:
        if load.n <= known.n:
            continue
        num_loads = known.num_loads + 1 if load.plan_id == known.plan_id else 1
        known = replace(known, n=load.n, plan_id=load.plan_id, num_loads=num_loads)
        if load.samples > 0 and load.seconds > 0:
            seconds = load.seconds * _to_mean(sharing, load.samples, load.tokens)
            known = replace(known, speed=known.speed.seen(load.samples, seconds))
    return known


def _to_mean(sharing: Sharing, samples: int, tokens: float) -> float:
    """By what seconds are to be multiplied, to be those of so many samples as long as they are in the mean."""
    if tokens <= 0 or sharing.num_tokens <= 0:
        return 1.0
    return samples / tokens * sharing.num_tokens / sharing.num_samples


def _stepped(sharing: Sharing, record: RoundRecord) -> Sharing:
    step_s, wire_bytes = record.values.get("step_s", 0.0), record.values.get("wire_bytes")
    if wire_bytes is not None:
        wire_bytes -= record.values.get("redone_bytes", 0.0)
    wire_bytes_per_s = None if wire_bytes is None or step_s <= 0.0 else wire_bytes / step_s
    exchange_s = record.values.get("exchange_s", 0.0)
    most = max(sharing.most_bytes_per_s, (wire_bytes or 0.0) / exchange_s if exchange_s > 0.0 else 0.0)
    sharing = replace(sharing, last=record.key, wire_bytes_per_s=wire_bytes_per_s, most_bytes_per_s=most)
    if record.tokens > 0 and sharing.trial is None:  # both sides of a trial are told as of the same mean
        num_samples, num_tokens = sharing.num_samples + record.samples, sharing.num_tokens + record.tokens
        sharing = replace(sharing, num_samples=num_samples, num_tokens=num_tokens)
    if record.plan_id != sharing.plan_id:
        return replace(sharing, plan_id=record.plan_id, steps=())  # the first step of a plan pays for warming up
    if record.is_skipped or record.is_trial or step_s <= 0.0:
        return sharing
    usual_s = step_s * _to_mean(sharing, record.samples, record.tokens)
    return replace(sharing, steps=(*sharing.steps, (record.samples / usual_s, usual_s / record.num_steps))[-MAX_STEPS:])


def wire_share(sharing: Sharing) -> float | None:
    """What each member sends, of the most that it was seen to send; None where nothing is sent."""
    if not sharing.wire_bytes_per_s or sharing.most_bytes_per_s <= 0.0:
        return None
    return min(1.0, sharing.wire_bytes_per_s / sharing.most_bytes_per_s)


def without(sharing: Sharing, worker_ids: Iterable[str]) -> Sharing:
    """Forget workers that are gone."""
    gone = set(worker_ids)
    return (
        replace(sharing, known={i: known for i, known in sharing.known.items() if i not in gone}) if gone else sharing
    )


def rate(sharing: Sharing, plan_id: PlanId, num_newest: int = MAX_STEPS) -> Rate | None:
    """Speed of the newest steps under a plan, None before there are any."""
    newest = sharing.steps[-num_newest:] if sharing.plan_id == plan_id else ()
    return judging.rate_of(tuple(samples_per_s for samples_per_s, _ in newest))


def rate_before(sharing: Sharing, plan: Plan) -> Rate | None:
    """Speed of the steps that a change is to be measured by: all under this plan, if none has another speed since."""
    is_shifted = num_shifts(sharing, plan) != sharing.num_shifts
    return rate(sharing, plan.id, NUM_BEFORE if is_shifted else MAX_STEPS)


def standing(sharing: Sharing, plan: Plan) -> shares.Standing | None:
    """The members as an advisor sees them, None while one is not measured under this plan, or its speed is changing."""
    parts = plan.parts
    known = [sharing.known.get(worker_id, Known()) for worker_id in parts]
    is_measured = all(one.plan_id == plan.id and one.num_loads >= MIN_LOADS and one.speed.is_steady for one in known)
    if not is_measured or sharing.plan_id != plan.id or len(sharing.steps) < scaling.MIN_STEPS:
        return None
    costs = tuple(one.speed.line.fitted() for one in known)
    split = tuple(parts.values())
    step_s = median(step_s for _, step_s in sharing.steps[-NUM_BEFORE:])
    overhead_s = max(0.0, step_s - shares.slowest_s(costs, split))
    return shares.Standing(names=tuple(parts), parts=split, costs=costs, overhead_s=overhead_s)


def num_shifts(sharing: Sharing, plan: Plan) -> int:
    """How often members have changed their speed by now."""
    return sum(sharing.known[i].speed.num_shifts for i in plan.worker_ids if i in sharing.known)


def own_s(sharing: Sharing, plan: Plan) -> float:
    """What a step takes the slowest member by itself, as far as it is known."""
    return max((sharing.known[i].speed.level_s for i in plan.worker_ids if i in sharing.known), default=0.0)


def is_due(sharing: Sharing, plan: Plan, now_s: float, review_s: float) -> bool:
    """Whether to look at the parts: every ``review_s``, or where what was known of this group holds no longer."""
    is_new = plan.generation != sharing.reviewed_generation or num_shifts(sharing, plan) != sharing.num_shifts
    return is_new or now_s - sharing.reviewed_s >= review_s * 2 ** min(sharing.num_failed, MOST_DOUBLINGS)


def reviewed(sharing: Sharing, plan: Plan, now_s: float) -> Sharing:
    """Looked at just now."""
    return replace(
        sharing,
        reviewed_s=now_s,
        reviewed_generation=plan.generation,
        num_shifts=num_shifts(sharing, plan),
    )

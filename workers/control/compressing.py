"""What a controller knows of its job's gradient exchange: what it took under the plan in force, and the trial. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from workers.advisors.exchange import Link
from workers.advisors.judging import Rate
from workers.plan import Exchange, Plan, PlanId, TimelineKind
from workers.status import WorkerStatus

ACTOR = "communication"

REVIEW_S = 300.0
"""How often the scheme is looked at again; half as often with every change that did not pay."""

MIN_RUNS = 3
"""Runs of rounds under the plan in force that every member must have told before the scheme is looked at."""

MAX_RUNS = 8

SHIFT = 1.5
"""An exchange that takes this many times as long, or as short, as when it was looked at is looked at again sooner."""

REST_S = 10.0
"""The least time until then; twice as long with every change that did not pay."""

PEACEFUL = frozenset((TimelineKind.RESIZE, TimelineKind.WORKER_JOINED))
"""What another group comes of where the one before it did not break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One worker's newest runs under a plan, as (exchange_s, exposed_s), and the number of the last."""

    n: int = 0
    plan_id: PlanId = PlanId(0, 0)
    runs: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A scheme that is being measured under the plan ``plan_id``; ``rate`` is the speed of steps by the one before.

    ``link`` is what an exchange took by that, ``link_s`` what the link would have taken of a dense one. It is of a
    group's ``place``, its generation and its batch, while nobody changes its speed (``num_shifts``).
    """

    plan_id: PlanId
    place: tuple[int, int]
    num_shifts: int
    before: str
    after: str
    rate: Rate
    expected_gain: float
    link: Link
    link_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressing:
    """Runs by worker id; when the scheme was reviewed, and what an exchange took then; the trial.

    ``reviewed_s`` is the controller's monotonic clock, ``reviewed_at`` the generation and the batch at that time.
    ``refused`` maps schemes that did not pay to what the link took then; ``barred`` are those with which a group
    broke before they were judged. ``unjudged`` is the scheme to go back to where a trial was cut short. ``why`` tells
    why the scheme stays.
    """

    heard: Mapping[str, Heard] = field(default_factory=dict)
    reviewed_s: float = float("-inf")
    reviewed_at: tuple[int, int] = (0, 0)
    reviewed_link: Link | None = None
    num_failed: int = 0
    num_judged: int = 0
    trial: Trial | None = None
    refused: Mapping[str, float] = field(default_factory=dict)
    barred: frozenset[str] = frozenset()
    unjudged: str | None = None
    why: str = ""


def observe(known: Compressing, statuses: Iterable[WorkerStatus], worker_ids: Iterable[str]) -> Compressing:
    """Fold in what workers tell, each run once; only these are still there."""
    present = set(worker_ids)
    heard = {i: one for i, one in known.heard.items() if i in present}
    for status in statuses:
        if status.loads and status.worker_id in present:
            heard[status.worker_id] = _told(heard.get(status.worker_id, Heard()), status)
    return known if heard == known.heard else replace(known, heard=heard)


def _told(heard: Heard, status: WorkerStatus) -> Heard:
    for load in status.loads:
        if load.n > heard.n:
            runs = heard.runs if load.plan_id == heard.plan_id else ()
            runs = (*runs, (load.exchange_s, load.exposed_s))[-MAX_RUNS:]
            heard = Heard(n=load.n, plan_id=load.plan_id, runs=runs)
    return heard


def link(known: Compressing, plan: Plan) -> Link | None:
    """What an exchange took the member that waited least for it; None while one has not told enough under this plan."""
    heard = [known.heard.get(worker_id, Heard()) for worker_id in plan.worker_ids]
    if any(one.plan_id != plan.id or len(one.runs) < MIN_RUNS for one in heard):
        return None
    found = [
        Link(exchange_s=median(took for took, _ in one.runs), exposed_s=median(waited for _, waited in one.runs))
        for one in heard
    ]
    return min(found, key=lambda one: one.exposed_s)


def place_of(plan: Plan) -> tuple[int, int]:
    """Within which steps can be compared."""
    return plan.generation, plan.global_batch


def followed(known: Compressing, plan: Plan, num_shifts: int) -> Compressing:
    """With the trial as the latest plan leaves it: it goes on where nothing changed that its steps are measured by.

    A scheme with which a group broke is not tried again: memory may have run out for it.
    """
    trial = known.trial
    if trial is None or (plan.id, num_shifts) == (trial.plan_id, trial.num_shifts):
        return known
    is_alike = (place_of(plan), plan.exchange.name, num_shifts) == (trial.place, trial.after, trial.num_shifts)
    if is_alike:
        return replace(known, trial=replace(trial, plan_id=plan.id))
    is_broken = plan.generation != trial.place[0] and plan.cause.kind not in PEACEFUL
    barred = known.barred | {trial.after} if is_broken else known.barred
    return replace(known, trial=None, unjudged=trial.before, reviewed_link=None, barred=barred)


def retreat(known: Compressing) -> Exchange | None:
    """What a new group begins with where the scheme in force was not judged yet: the one before."""
    scheme = known.unjudged if known.trial is None else known.trial.before
    told = "auto: another scheme was on trial when its group ended"
    return None if scheme is None else Exchange.named(scheme, told)


def is_due(known: Compressing, plan: Plan, now: Link, now_s: float) -> bool:
    """Whether to look at the scheme: in time, or where another group, another batch or another link asks for it."""
    then = known.reviewed_link
    if place_of(plan) != known.reviewed_at or then is None:
        return True
    low_s, high_s = sorted((then.exchange_s, now.exchange_s))
    wait_s = (REST_S if high_s >= SHIFT * low_s else REVIEW_S) * float(2**known.num_failed)
    return now_s - known.reviewed_s >= wait_s


def reviewed(known: Compressing, plan: Plan, now: Link, now_s: float) -> Compressing:
    """Looked at just now."""
    return replace(known, reviewed_s=now_s, reviewed_at=place_of(plan), reviewed_link=now)


def refuse(known: Compressing, trial: Trial) -> Compressing:
    """The scheme on trial did not pay on such a link; what is seen next is that by the scheme before."""
    refused = {**known.refused, trial.after: trial.link_s}
    return replace(known, refused=refused, num_failed=known.num_failed + 1, reviewed_link=trial.link)

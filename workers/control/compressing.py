"""What a controller knows of its job's gradient exchange: what it took under the plan in force, and the trial. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from workers.advisors.exchange import LEAST_KEPT, Link
from workers.advisors.judging import Rate, Verdict
from workers.exchange_options import bucketed
from workers.plan import Exchange, Plan, PlanId
from workers.racks import Topology
from workers.status import WorkerStatus

ACTOR = "communication"

REVIEW_S = 300.0
"""How often the scheme is looked at again; half as often with every change that did not pay."""

MIN_RUNS = 3
"""Runs of rounds under the plan in force that every member must have told before the scheme is looked at."""

MAX_RUNS = 8

NUM_TELLING = 5
"""The newest of them, by which a link is known: where it has become slow, each takes long to come."""

MOST_DOUBLED = 6

SHIFT = 1.5
"""An exchange that takes this many times as long, or as short, as when it was looked at is looked at again sooner."""

REST_S = 10.0
"""The least time until then; twice as long with every change that did not pay."""

MOST_GONE = 3
"""Nodes that go so often on end while a scheme is tried do not go by chance: one may be a container, which ends as a
whole where memory runs out in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One worker's newest runs under a plan, as what exchanges took, and the number of the last."""

    n: int = 0
    plan_id: PlanId = PlanId(0, 0)
    runs: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What steps were like with a scheme on trial.

    ``is_link_faster``: for as many bytes than before it; ``latency_s`` is what links are now known to take whatever is
    sent.
    """

    rate: Rate
    link: Link
    is_link_faster: bool
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A scheme that is being measured under the plan ``plan_id``; ``rate`` is the speed of steps by the one before.

    ``link`` is what an exchange took by that, ``pace_s`` how slow the link was (``exchange.pace_s``). It is of a
    group's ``place``, its generation and its batch. ``own_s`` is what a step took the slowest member by itself, and
    ``added_s`` what the scheme may add to that. Once ``seen`` is there it is the scheme before that is measured again.
    ``is_broken``: its group breaks with the scheme in force; ``is_blamed``: which may be why.
    """

    plan_id: PlanId
    place: tuple[int, int]
    own_s: float
    added_s: float
    before: str
    after: str
    rate: Rate
    expected_gain: float
    least_kept: float
    link: Link
    pace_s: float
    seen: Seen | None = None
    is_broken: bool = False
    is_blamed: bool = False

    @property
    def in_force(self) -> str:
        """The exchange that steps are measured by now."""
        return self.after if self.seen is None else self.before

    @property
    def is_gentler(self) -> bool:
        """Whether the scheme loses less than the one before."""
        return self.least_kept < LEAST_KEPT

    @property
    def is_back(self) -> bool:
        """Whether it is the one before in larger buckets, so that it needs nothing which that did not."""
        (before, before_mib, before_dense), (after, after_mib, after_dense) = map(bucketed, (self.before, self.after))
        return (before, before_dense) == (after, after_dense) and after_mib > before_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressing:
    """Runs by worker id; when the scheme was reviewed, and what an exchange took then; the trial.

    ``reviewed_s`` is the controller's monotonic clock, ``reviewed_at`` the generation and the batch at that time.
    ``refused`` maps schemes that did not pay to how slow the link was then; ``suspected`` are those with which a group
    broke before they were judged, ``barred`` those with which that was so twice, or ``MOST_GONE`` times on end where
    nodes went: ``gone`` has the scheme of each of those times since one was judged. ``unjudged`` is the scheme to go
    back to where a trial was cut short. ``why`` tells why the scheme stays, ``told_racks`` is the generation whose
    racks were looked at last, which are as ``topology`` tells. ``spent`` is how fast steps still are where what loses
    less was kept. ``latency_s`` is what links took whatever was sent, as a trial showed that did not pay. ``judged`` is
    the scheme that was judged last before this controller began.
    """

    heard: Mapping[str, Heard] = field(default_factory=dict)
    reviewed_s: float = float("-inf")
    reviewed_at: tuple[int, int] = (0, 0)
    reviewed_link: Link | None = None
    num_failed: int = 0
    num_judged: int = 0
    trial: Trial | None = None
    refused: Mapping[str, float] = field(default_factory=dict)
    suspected: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    gone: tuple[str, ...] = ()
    unjudged: str | None = None
    why: str = ""
    told_racks: int = 0
    topology: Topology | None = None
    spent: float = 1.0
    latency_s: float = 0.0
    latency_since_s: float = 0.0
    judged: str = ""


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
            run = Link(
                exchange_s=load.exchange_s,
                exposed_s=load.exposed_s,
                wire_s=load.wire_s,
                backward_s=load.backward_s,
                codec_s=load.codec_s,
            )
            heard = Heard(n=load.n, plan_id=load.plan_id, runs=(*runs, run)[-MAX_RUNS:])
    return heard


def link(known: Compressing, plan: Plan) -> Link | None:
    """What an exchange took the member that waited least for it; None while one has not told enough under this plan.

    The link itself was at work for the least that any member saw of it: who began last waited for nobody. Codecs took
    what they took the slowest.
    """
    heard = [known.heard.get(worker_id, Heard()) for worker_id in plan.worker_ids]
    if any(one.plan_id != plan.id or len(one.runs) < MIN_RUNS for one in heard):
        return None
    usual = [_usual(one.runs[-NUM_TELLING:]) for one in heard]
    wires = [one.wire_s for one in usual if one.wire_s is not None]
    codecs = [one.codec_s for one in usual if one.codec_s is not None]
    least = min(usual, key=lambda one: one.exposed_s)
    return replace(least, wire_s=min(wires, default=None), codec_s=max(codecs, default=None))


def _usual(runs: Sequence[Link]) -> Link:
    wires = [run.wire_s for run in runs if run.wire_s is not None]
    passes = [run.backward_s for run in runs if run.backward_s is not None]
    codecs = [run.codec_s for run in runs if run.codec_s is not None]
    return Link(
        exchange_s=median(run.exchange_s for run in runs),
        exposed_s=median(run.exposed_s for run in runs),
        wire_s=median(wires) if wires else None,
        backward_s=median(passes) if passes else None,
        codec_s=median(codecs) if codecs else None,
    )


def why_stays(known: Compressing, plan: Plan) -> str:
    """Why the scheme stays, where it was looked at in the group of this plan; empty where it was not yet."""
    return known.why if known.reviewed_at[0] == plan.generation else ""


def place_of(plan: Plan) -> tuple[int, int]:
    """Within which steps can be compared."""
    return plan.generation, plan.global_batch


def followed(known: Compressing, plan: Plan) -> Compressing:
    """With the trial as the latest plan leaves it: it goes on where nothing changed that its steps are measured by.

    A scheme whose group may have broken of it, as memory may have run out, is tried once more. One that loses less than
    that before has no more to keep.
    """
    trial = known.trial
    if trial is None or plan.id == trial.plan_id:
        return known
    if (place_of(plan), plan.exchange.name) == (trial.place, trial.in_force):
        return replace(known, trial=replace(trial, plan_id=plan.id))
    known = unjudged(known)
    if not trial.is_broken or trial.seen is not None or trial.is_gentler or trial.is_back:
        return known
    gone = known.gone if trial.is_blamed else (*known.gone, trial.after)
    known = replace(known, gone=gone)
    if not trial.is_blamed and gone.count(trial.after) < MOST_GONE:
        return known
    if not trial.is_blamed or trial.after in known.suspected:
        return replace(known, barred=known.barred | {trial.after})
    return replace(known, suspected=known.suspected | {trial.after})


def blamed(known: Compressing, *, is_broken: bool, is_blamed: bool) -> Compressing:
    """With what is known by now of why the trial's group breaks, if it does."""
    trial = known.trial
    if trial is None or (trial.is_broken, trial.is_blamed) == (is_broken, is_blamed):
        return known
    return replace(known, trial=replace(trial, is_broken=is_broken, is_blamed=is_blamed))


def unjudged(known: Compressing) -> Compressing:
    """The trial is given up: back to the scheme before, to be looked at anew."""
    return known if known.trial is None else replace(known, trial=None, unjudged=known.trial.before, reviewed_link=None)


def spoilt(known: Compressing) -> Compressing:
    """As ``unjudged``, and rest twice as long every time: the scheme itself may be what spoils its trials."""
    return replace(unjudged(known), num_failed=known.num_failed + 1)


def begins_with(known: Compressing, latest: Exchange) -> Exchange:
    """What a new group begins with: as the ``latest`` plan has it, or the scheme before where that is not judged yet.

    Where a verdict has just brought a scheme back its plan is the latest, and may not be in force anywhere.
    """
    scheme = known.unjudged if known.trial is None else known.trial.before
    told = "auto: another scheme was on trial when its group ended"
    return latest if scheme is None else Exchange.named(scheme, told)


def without_barred(reason: str, known: Compressing) -> str:
    """The reason for a change, with those schemes that are left alone for good."""
    names = " and ".join(sorted(known.barred))
    return f"{reason}; {names} is left alone, as groups broke while it was tried" if names else reason


def is_due(known: Compressing, plan: Plan, now: Link, now_s: float) -> bool:
    """Whether to look at the scheme: in time, or where another group, another batch or another link asks for it."""
    then = known.reviewed_link
    if place_of(plan) != known.reviewed_at:
        return True
    if then is None:
        return now_s - known.reviewed_s >= _rests(known, REST_S)
    low_s, high_s = sorted((then.taken_s, now.taken_s))
    return now_s - known.reviewed_s >= _rests(known, REST_S if high_s >= SHIFT * low_s else REVIEW_S)


def _rests(known: Compressing, wait_s: float) -> float:
    """Twice as long for each trial that came to nothing, but for no more than hours."""
    return wait_s * 2.0 ** min(known.num_failed, MOST_DOUBLED)


def with_links_anew(known: Compressing, now_s: float) -> Compressing:
    """What links took whatever was sent is believed until the next look that time alone asks for: they may change."""
    is_old = now_s - known.latency_since_s >= _rests(known, REVIEW_S)
    return replace(known, latency_s=0.0) if is_old else known


def reviewed(known: Compressing, plan: Plan, now: Link, now_s: float) -> Compressing:
    """Looked at just now."""
    return replace(known, reviewed_s=now_s, reviewed_at=place_of(plan), reviewed_link=now)


def kept(known: Compressing, gain: float) -> Compressing:
    """What was on trial makes steps ``gain`` times as fast, and stays."""
    return replace(known, trial=None, num_failed=0, spent=min(1.0, known.spent * gain), gone=())


def refuse(known: Compressing, trial: Trial, seen: Seen) -> Compressing:
    """The scheme on trial did not pay on such a link; what is seen next is that by the scheme before."""
    return replace(
        known,
        trial=None,
        gone=(),
        refused={**known.refused, trial.after: trial.pace_s},
        num_failed=known.num_failed + 1,
        reviewed_link=trial.link,
        latency_s=seen.latency_s,
        latency_since_s=known.reviewed_s,
    )


def added_s(trial: Trial, now: Link) -> float:
    """What the scheme on trial adds to a member's own seconds, at most: as its codecs took where that was measured."""
    if math.isinf(trial.added_s) or trial.link.codec_s is None or now.codec_s is None:
        return trial.added_s
    return now.codec_s - trial.link.codec_s


def is_spoilt(trial: Trial, plan: Plan, now: Rate, verdict: Verdict, own_s: float) -> bool:
    """Whether the verdict hangs on a member that has become slower or faster by itself meanwhile (now: ``own_s``).

    Encoding while backward runs is part of what a step takes a member by itself, and of what is judged.
    """
    drift_s = own_s - trial.own_s
    drift_s -= min(max(drift_s, min(0.0, trial.added_s)), max(0.0, trial.added_s))
    before_s, now_s = plan.global_batch / trial.rate.samples_per_s, plan.global_batch / now.samples_per_s
    return verdict.is_kept != (before_s >= trial.least_kept * (now_s - drift_s))

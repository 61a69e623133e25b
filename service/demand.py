"""Which machines are wanted beyond those that there are, and what the autoscaler makes of it, in words. Pure.

An autoscaler is told what the whole cluster shall have room for, not what shall come: what is in use is
part of a demand, and a demand stands until another one replaces it.

Of a worker that may have CPUs instead of a GPU it is told the GPU as long as the cluster has any, else the CPUs: no
autoscaler can be asked for either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.queue import Running, Waiting, free_at
from service.records import Autoscaling, Explanation, NodeView
from service.room import KINDS, Amounts, Need, Room, take
from service.words import plural

LEAD_S = 60.0
"""What a machine is taken to need to come: whoever ends sooner makes room sooner."""

LEAST_LEFT_S = 300.0
"""A job with less than this to go gets no machine just to be faster."""

SETTLE_S = 2.0
"""Told only when something has been wanted for so long without a break: room may be about to come free."""

LINGER_S = 10.0
"""Withdrawn this long after the last wish."""

PLACING_S = 120.0
"""Withdrawn only so long after it while granted workers are not there yet: till then a machine that came is idle."""

MAX_NAMES = 5

_MORE_NODES = "Let the autoscaler have more or larger nodes, or submit it anew with lower `resources` or `workers.min`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All that the cluster shall have room for, by worker, in ``KINDS``; empty when what there is will do.

    ``missing`` is the number of workers, by job, that find no room in what there is; ``waiting`` are these jobs
    where they wait, and nobody where they train.
    """

    bundles: tuple[Amounts, ...] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[Waiting, ...] = ()


NOTHING = Demand()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Those who wait, the oldest first; ``is_whole``: nobody waits behind them.

    The ``stuck`` would not fit into what there is if it were empty. For the ``refused`` the autoscaler had no nodes
    when it was asked for them alone; each with whether it is time to ask again.
    """

    jobs: Sequence[Waiting] = ()
    stuck: frozenset[str] = frozenset()
    refused: Mapping[str, bool] = field(default_factory=dict)
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Workers without room that may be told of: ``now``, and by the setting ``max_demand_workers`` at ``most``."""

    now: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is wanted; ``has_hope``: somebody waits who may start on what there is, or for whom nodes may come.

    ``too_many`` are the workers without room of those who lack more than may ever be told of, by job; ``refused``
    those for whom the autoscaler had no nodes.
    """

    demand: Demand = NOTHING
    too_many: Mapping[str, int] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    has_hope: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The demand that is in force; ``since_s`` and ``wanted_s``: something has been wanted since, and was last."""

    demand: Demand = NOTHING
    since_s: float | None = None
    wanted_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Wish:
    """``lacking`` is what is asked for where one of its workers finds no room."""

    job_id: str
    need: Need
    lacking: Amounts
    count: int
    can_be_part: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """The nodes that stay, whether they take workers or not, and the jobs that train."""

    usable: Sequence[NodeView]
    closed: Sequence[NodeView]
    running: Sequence[Running]

    @property
    def has_gpus(self) -> bool:
        """Whether any of these nodes has some."""
        return any(node.has_gpus for node in (*self.usable, *self.closed))

    def for_waiting(
        self, jobs: Sequence[Waiting], sizes: Mapping[str, int], max_workers: int
    ) -> tuple[Demand, dict[str, int]]:
        """The demand beside jobs of these sizes, and what those lack who are not part of it."""
        wishes = [_Wish(job.job_id, job.need, job.need.on(self), job.min) for job in jobs]
        demand, unasked = self._demand(wishes, sizes, max_workers)
        return replace(demand, waiting=tuple(job for job in jobs if job.job_id in demand.missing)), unasked

    def for_running(self, max_workers: int) -> Demand:
        wishes = [
            _Wish(job.job_id, job.need, job.need.on(self), wanted - job.num_workers, can_be_part=True)
            for job in self.running
            for wanted in (min(job.num_asked, job.max),)
            if _is_worth_it(job)
        ]
        sizes = {job.job_id: 0 if _ends_soon(job) else job.num_workers for job in self.running}
        return self._demand(wishes, sizes, max_workers)[0]

    def _demand(
        self, wishes: Iterable[_Wish], sizes: Mapping[str, int], max_workers: int
    ) -> tuple[Demand, dict[str, int]]:
        room = free_at(self.running, self.usable, sizes)
        in_use = [_in_use(node, free) for node, free in zip(self.usable, room, strict=True)]
        in_use += [dict(node.total) for node in self.closed]
        asked, missing, unasked = _beyond(wishes, room, max_workers)
        if not missing:
            return NOTHING, unasked
        bundles = tuple(bundle for amounts in (*in_use, *asked) if (bundle := _whole(amounts)))
        return Demand(bundles=bundles, missing=missing), unasked


def wanted(
    line: Line, running: Sequence[Running], nodes: Iterable[NodeView], *, shut: frozenset[str], bounds: Bounds
) -> Outlook:
    """What would let the waiting start with their minimum, or else let the running have the size they ask for.

    Nobody gets a machine for what the queue can take back from elastic jobs, or what ends within ``LEAD_S``.
    ``shut`` are nodes that take no workers and that the autoscaler counts as free all the same; ``bounds.now``
    goes to the oldest jobs. The hopeless hold nobody up: who was refused is asked for again alone, after all others.
    """
    here = [node for node in nodes if node.is_alive and not node.is_leaving]
    usable, closed = ([node for node in here if (node.node_id in shut) is is_shut] for is_shut in (False, True))
    asking = _Asking(usable=usable, closed=closed, running=running)
    least = {job.job_id: _least(job) for job in running}
    fresh = [job for job in line.jobs if job.job_id not in line.refused]
    again = next((job for job in line.jobs if line.refused.get(job.job_id)), None)
    demand, unasked = asking.for_waiting(fresh, least, bounds.now)
    if not demand.missing and again is not None:
        demand, unasked = asking.for_waiting([*fresh, again], least, bounds.now)
    too_many = {job_id: lacks for job_id, lacks in unasked.items() if lacks > bounds.most}
    hopeless = line.stuck & (too_many.keys() | line.refused.keys())
    has_hope = not line.is_whole or any(job.job_id not in hopeless for job in line.jobs)
    if not demand.missing and not has_hope:
        demand = asking.for_running(bounds.now)
    return Outlook(demand=demand, too_many=too_many, refused=frozenset(line.refused), has_hope=has_hope)


def offered(job: Running, num_offered: int, max_workers: int) -> int:
    """How many workers a job that trains may ask for where nodes would come for it; ``num_offered`` has room now."""
    return min(job.max, num_offered + max_workers) if _is_worth_it(job) else num_offered


def settled(standing: Standing, wish: Demand, now_s: float, *, is_placing: bool = False) -> Standing:
    """The demand in force from now on; ``now_s`` is monotonic; ``is_placing``: granted workers are not there yet."""
    if wish.bundles:
        since_s = now_s if standing.since_s is None else standing.since_s
        demand = wish if now_s - since_s >= SETTLE_S else standing.demand
        return Standing(demand=demand, since_s=since_s, wanted_s=now_s)
    linger_s = PLACING_S if is_placing else LINGER_S
    if standing.demand.bundles and now_s - standing.wanted_s < linger_s:
        return replace(standing, since_s=None)
    return Standing(wanted_s=standing.wanted_s)


def sentences(seen: Autoscaling, names: Mapping[str, str]) -> list[str]:
    """What the autoscaler is doing; ``names`` are the jobs' by id."""
    told = []
    jobs = _listed(list(dict.fromkeys(names[job_id] for job_id in seen.wanted_by if job_id in names)))
    whom = f" for {jobs}" if jobs else ""
    if seen.num_coming:
        told.append(f"{plural(seen.num_coming, 'node')} {'is' if seen.num_coming == 1 else 'are'} being started{whom}.")
    elif jobs and not seen.is_infeasible:
        told.append(f"The autoscaler was asked for nodes{whom}.")
    if seen.is_infeasible:
        told.append(f"The autoscaler has no kind of node, or none left, with room for what is wanted{whom}.")
    told += [f"A node could not be started: {why}." for why in seen.failures]
    return told


def _listed(names: Sequence[str]) -> str:
    num_more = len(names) - MAX_NAMES
    shown = [*names[:MAX_NAMES], *([plural(num_more, "other job")] if num_more > 0 else [])]
    return " and ".join(shown)


def explain(num_missing: int, seen: Autoscaling) -> Explanation:
    """Why a job waits for which nodes were asked."""
    details = sentences(replace(seen, wanted_by=()), {})
    if seen.is_infeasible or seen.failures:
        return Explanation(
            summary=f"It waits for nodes with room for {plural(num_missing, 'worker')}, which do not come.",
            details=tuple(details),
            remedy=_MORE_NODES,
        )
    return Explanation(
        summary=f"It waits for nodes with room for {plural(num_missing, 'worker')}; the autoscaler was asked for them.",
        details=tuple(details),
    )


def explain_too_many(num_missing: int, most: int, why: Explanation | None) -> Explanation:
    """Why no nodes are asked for; ``why`` tells what else keeps it from starting, None: only who has the room now."""
    return Explanation(
        summary=f"It waits for room for {plural(num_missing, 'worker')} more, and no nodes are asked for: the setting "
        f"`max_demand_workers` = {most} lets the autoscaler be asked for no more than that at once.",
        details=why.details if why else (),
        remedy=f"Set `max_demand_workers` to {num_missing} or more (in `config.toml`, or as "
        "CONCERTINA_MAX_DEMAND_WORKERS) and start the service again, add machines to the cluster, or submit it anew "
        "with lower `workers.min`.",
    )


def explain_refused(why: Explanation) -> Explanation:
    """Why a job can never start, where the autoscaler could not help."""
    return Explanation(
        summary=why.summary,
        details=(
            "The autoscaler has no kind of node, or none left, with room for it. It is asked again now and then; till "
            "then the job holds nobody up.",
            *why.details,
        ),
        remedy=_MORE_NODES,
    )


def _is_worth_it(job: Running) -> bool:
    return not (job.is_pinned or job.is_leaving) and LEAST_LEFT_S <= job.left_s < math.inf


def _least(job: Running) -> int:
    """What it keeps when others wait, once those that end soon have ended."""
    if _ends_soon(job):
        return 0
    return job.num_workers if job.is_pinned else min(job.min, job.num_workers)


def _ends_soon(job: Running) -> bool:
    return job.is_leaving or job.left_s < LEAD_S


def _beyond(
    wishes: Iterable[_Wish], room: list[Room], max_missing: int
) -> tuple[list[Amounts], dict[str, int], dict[str, int]]:
    """The workers to have room for, and how many find none, by job; room is used up in the wishes' order.

    Last what those lack who are not among them: to start they need all of it at once, and nodes for a part of it
    would stand idle till the rest came, which may be never.
    """
    asked: list[Amounts] = []
    missing: dict[str, int] = {}
    unasked: dict[str, int] = {}
    for wish in wishes:
        trial = [free.copy() for free in room]
        fitting = take(wish.need, trial, wish.count)
        lacks = wish.count - len(fitting)
        if wish.can_be_part:
            lacks = min(lacks, max_missing)
        if lacks > max_missing:
            unasked[wish.job_id] = lacks
            continue
        room, max_missing = trial, max_missing - lacks
        asked += [*fitting, *[wish.lacking] * lacks]
        if lacks > 0:
            missing[wish.job_id] = lacks
    return asked, missing, unasked


def _in_use(node: NodeView, free: Room) -> dict[str, float]:
    totals = {kind: node.total.get(kind, 0.0) for kind in KINDS}
    return {kind: min(total, max(0.0, total - free.left[kind])) for kind, total in totals.items()}


def _whole(amounts: Amounts) -> Amounts:
    return {kind: amounts[kind] for kind in KINDS if amounts.get(kind, 0.0) > 0.0}

"""What a change cost: seconds without a commit, and steps lost, read off the records around it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from workers.control import compressing, sharing
from workers.plan import Plan, PlanId, TimelineKind
from workers.run_settings import Donor
from workers.status import Acknowledged, RoundRecord, TimelineRow

MAX_PLANS = 64
MAX_STEP_TIMES = 64

_PLAN_ROW = "plan"
_BEGINNINGS = (TimelineKind.START, TimelineKind.RESTORE)


@dataclass(slots=True)
class _Stretch:
    """The first and the last record trained under one plan."""

    first: RoundRecord
    last: RoundRecord


class _Commit(NamedTuple):
    """When a round was committed, in Unix seconds."""

    lineage: int
    round: int
    time: float


class Costs:
    """Completes timeline rows of plans (key ``plan/<term>/<n>``) once the first round under them is told.

    ``cost_s`` is the time from the last commit under an earlier plan to the first under this one, less
    one ordinary step. Of several plans that one gap separates from the records before, the one that
    came into force bears the cost, and those that it overtook cost nothing. ``stored`` is what the store had
    when this began: its last record comes before any plan whose row has no price yet, since a row is stored
    with its price together with the first record under its plan. The first plan of an attempt costs no time, but what
    attempts before it had done and nobody had saved is lost. Where all who knew were lost, what is known to be lost is
    the least that is (``is_least``).
    """

    def __init__(self, global_size: int, stored: Acknowledged) -> None:
        self._global_size = global_size
        self._earlier: _Commit | None = None
        if stored.committed_at is not None:
            self._earlier = _Commit(*stored.rounds, stored.committed_at)
        self._before, self._is_before_least = stored.before, stored.is_before_least
        self._stretches: dict[PlanId, _Stretch] = {}
        self._step_times: deque[float] = deque(maxlen=MAX_STEP_TIMES)
        self._reached: dict[int, int] = {}
        self._taken_over: set[int] = set()

    def observe(self, record: RoundRecord) -> None:
        """Take note of a record; repeated ones change nothing."""
        if (step_s := record.values.get("step_s")) is not None:
            self._step_times.append(step_s)
        stretch = self._stretches.get(record.plan_id)
        if stretch is None:
            self._stretches[record.plan_id] = _Stretch(first=record, last=record)
            if len(self._stretches) > MAX_PLANS:
                del self._stretches[min(self._stretches)]
            return
        if record.key < stretch.first.key:
            stretch.first = record
        if record.key > stretch.last.key:
            stretch.last = record

    def notice(self, row: TimelineRow) -> None:
        """Take note of a row: a lineage that begins with another job's state does no round of this one again."""
        if "donor" in row.after and "lineage" in row.after:
            self._taken_over.add(int(row.after["lineage"]))

    def reach(self, lineage: int, round: int) -> None:
        """Take note of how far a worker has come, whose records may never arrive."""
        self._reached[lineage] = max(round, self._reached.get(lineage, 0))

    def price(self, row: TimelineRow) -> TimelineRow:
        """The row with step, cost and steps lost where they are known by now, else unchanged."""
        if not self.is_open(row):
            return row
        plan_id = _plan_of(row)
        assert plan_id is not None
        in_force = min((p for p in self._stretches if p >= plan_id), default=None)
        if in_force is None:
            return row
        first = self._stretches[in_force].first
        step = max(0, first.cursor - first.samples) // self._global_size
        last = self._last_before(plan_id)
        if last is None and row.kind in _BEGINNINGS:
            return self._begun(replace(row, step=step, cost_s=0.0), first)
        if in_force > plan_id or last is None:
            return replace(row, step=step, cost_s=0.0, steps_lost=0)
        last_round = (
            last.round if first.lineage == last.lineage else max(last.round, self._reached.get(last.lineage, 0))
        )
        ordinary_s = median(self._step_times) if self._step_times else 0.0
        cost_s = round(max(0.0, first.time - last.time - ordinary_s), 6)
        is_taken_over = first.lineage != last.lineage and first.lineage in self._taken_over
        steps_lost = 0 if is_taken_over else max(0, last_round - first.round + 1)
        priced = replace(row, step=step, cost_s=cost_s, steps_lost=steps_lost)
        return priced if first.lineage == last.lineage or is_taken_over else _at_least(priced)

    def _begun(self, row: TimelineRow, first: RoundRecord) -> TimelineRow:
        """The row of a beginning with the steps of attempts before this one that are done again; told once."""
        before, self._before = self._before, 0
        if not before or first.lineage in self._taken_over:
            return replace(row, steps_lost=0)
        priced = replace(row, steps_lost=max(0, before - first.round + 1))
        return _at_least(priced) if self._is_before_least else priced

    def _last_before(self, plan_id: PlanId) -> _Commit | None:
        before = max((p for p in self._stretches if p < plan_id), default=None)
        if before is None:
            return self._earlier
        last = self._stretches[before].last
        return _Commit(last.lineage, last.round, last.time)

    def is_open(self, row: TimelineRow) -> bool:
        """Whether the row still waits for its price."""
        return row.cost_s is None and _plan_of(row) is not None


def _at_least(row: TimelineRow) -> TimelineRow:
    return replace(row, after={**row.after, "is_least": True})


def tuning_of(plan: Plan) -> dict[str, float]:
    """Batch and learning rate, as timeline rows tell them."""
    return {"global_batch": plan.global_batch, "lr": plan.lr.lr}


def donor_of(plan: Plan) -> dict[str, object]:
    """Whose state is taken over, as timeline rows tell it."""
    source = plan.source
    return {"donor": source.job_id, "samples": source.cursor} if isinstance(source, Donor) else {}


def row_of(plan: Plan, unix_s: float) -> TimelineRow:
    """A plan's row as far as the plan itself tells it, for one whose controller took the row with it."""
    group = {"workers": plan.num_members, "generation": plan.generation, "lineage": plan.lineage, **donor_of(plan)}
    is_retuned = plan.cause.kind in (TimelineKind.LR, TimelineKind.BATCH) or isinstance(plan.source, Donor)
    after = {**group, **(tuning_of(plan) if is_retuned else {})}
    if plan.cause.actor == sharing.ACTOR:
        after = {"parts": list(plan.parts.values())}
    if plan.cause.actor == compressing.ACTOR:
        after = {"scheme": plan.exchange.name}
    return TimelineRow(
        key=f"{_PLAN_ROW}/{plan.id.term}/{plan.id.n}",
        kind=plan.cause.kind,
        time=unix_s,
        step=0,
        actor=plan.cause.actor,
        reason=plan.cause.reason,
        after=after,
    )


def _plan_of(row: TimelineRow) -> PlanId | None:
    parts = row.key.split("/")
    if parts[0] != _PLAN_ROW or len(parts) != 3:
        return None
    return PlanId(int(parts[1]), int(parts[2]))

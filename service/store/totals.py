"""Sums over all jobs, for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Connection, func, select
from sqlalchemy.sql.functions import Function

from service import exchange
from service.exchange import ExchangeTotals
from service.states import ENDED_STATES, PLACED_STATES, JobState
from service.store.counting import num_by_state
from service.store.database import Database
from service.store.schema import HAS_ENDED, jobs, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """``jobs`` by state, ``timeline`` entries by kind; ``exchange`` of gradients by the workers that train now."""

    jobs: Mapping[JobState, int]
    timeline: Mapping[str, int]
    num_current: int
    num_desired: int
    worker_s: float
    samples: int
    exchange: ExchangeTotals = field(default_factory=ExchangeTotals)


async def read_totals(database: Database) -> Totals:
    """All of it in one view of the database."""

    def work(conn: Connection) -> Totals:
        by_kind = conn.execute(select(timeline.c.kind, func.count()).group_by(timeline.c.kind))
        num_current, num_desired = conn.execute(_SIZES).one()
        # Those that have ended are in an index of their own, which jobs that train need not keep up to date.
        spent = [conn.execute(_SPENT.where(which)).one() for which in (HAS_ENDED, jobs.c.state.in_(_NOT_ENDED))]
        return Totals(
            jobs=num_by_state(conn),
            timeline={kind: int(number) for kind, number in by_kind},
            num_current=int(num_current),
            num_desired=int(num_desired),
            worker_s=sum(float(worker_s) for worker_s, _ in spent),
            samples=sum(int(samples) for _, samples in spent),
            exchange=exchange.totals(
                (num, json.loads(observed).get("exchange", {})) for num, observed in conn.execute(_TRAINING)
            ),
        )

    return await database.read(work)


def _sum(column: Column[Any]) -> Function[Any]:
    return func.coalesce(func.sum(column), 0)


_NOT_ENDED = sorted(set(JobState) - ENDED_STATES)
_IS_PLACED = jobs.c.state.in_(sorted(PLACED_STATES))
_SIZES = select(_sum(jobs.c.num_current), _sum(jobs.c.num_desired)).where(_IS_PLACED)
_SPENT = select(_sum(jobs.c.worker_s), _sum(jobs.c.samples))
_TRAINING = select(jobs.c.num_current, jobs.c.observed).where(_IS_PLACED, jobs.c.num_current > 0)

"""Sums over all jobs, for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from service import exchange
from service.exchange import ExchangeTotals
from service.store.database import Database
from service.store.schema import jobs, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """``jobs`` by state, ``timeline`` entries by kind; ``exchange`` of gradients by the workers that train now."""

    jobs: Mapping[str, int]
    timeline: Mapping[str, int]
    num_current: int
    num_desired: int
    worker_s: float
    samples: int
    exchange: ExchangeTotals = field(default_factory=ExchangeTotals)


async def read_totals(database: Database) -> Totals:
    """All of it in one view of the database."""
    sums = [
        func.coalesce(func.sum(column), 0)
        for column in (jobs.c.num_current, jobs.c.num_desired, jobs.c.worker_s, jobs.c.samples)
    ]

    training = select(jobs.c.num_current, jobs.c.observed).where(jobs.c.num_current > 0)

    def work(conn: Connection) -> Totals:
        by_state = conn.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state))
        by_kind = conn.execute(select(timeline.c.kind, func.count()).group_by(timeline.c.kind))
        num_current, num_desired, worker_s, samples = conn.execute(select(*sums)).one()
        return Totals(
            jobs={state: int(number) for state, number in by_state},
            timeline={kind: int(number) for kind, number in by_kind},
            num_current=int(num_current),
            num_desired=int(num_desired),
            worker_s=float(worker_s),
            samples=int(samples),
            exchange=exchange.totals(
                (num, json.loads(observed).get("exchange", {})) for num, observed in conn.execute(training)
            ),
        )

    return await database.read(work)

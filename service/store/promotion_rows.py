"""Between rows and records of promotions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, func, insert, or_, select, update

from service.promotion_records import (
    Contender,
    PromotionRow,
    PromotionRun,
    PromotionStanding,
    PromotionState,
    lasted_s,
)
from service.states import JobState
from service.store.configuration_tables import configurations, promotions
from service.store.configuration_tables import promotion_runs as runs
from service.store.database import Write
from service.store.moves import fetch_job
from service.store.port import StaleRowError
from service.store.rows import dumps
from service.store.schema import jobs, points, sweeps
from service.store.statements import text_bytes
from service.sweep_records import NOTHING_PROMOTED, Promoted, RunsSpent
from workers.spec_parts import Resources

_SECONDS = func.coalesce(jobs.c.worker_s, runs.c.seconds)
"""As the job of a run tells it: the row learns it at the end."""

_ITS_JOB = and_(jobs.c.id == runs.c.job_id, runs.c.is_open)
"""No job is read for a run whose row has learnt it."""

_SPENT = (
    select(runs.c.number, runs.c.contender, func.sum(_SECONDS).label("seconds"))
    .outerjoin(jobs, _ITS_JOB)
    .where(runs.c.sweep_id == bindparam("of"))
    .group_by(runs.c.number, runs.c.contender)
)


def promotion_of(row: Row[Any]) -> PromotionRow:
    """A row of ``promotions``."""
    return PromotionRow(
        sweep_id=row.sweep_id,
        number=row.number,
        configuration=row.configuration,
        base_version=row.base_version,
        state=PromotionState(row.state),
        reason=row.reason,
        contenders=tuple(Contender(**each) for each in json.loads(row.contenders)),
        seeds=tuple(json.loads(row.seeds)),
        evidence=None if row.evidence is None else json.loads(row.evidence),
        version=row.version,
        changed=row.changed,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def fetch_promotions(conn: Connection, sweep_id: str) -> list[PromotionRow]:
    """All of a sweep, the first one first."""
    of_it = select(promotions).where(promotions.c.sweep_id == sweep_id).order_by(promotions.c.number)
    return [promotion_of(row) for row in conn.execute(of_it)]


def fetch_seeds(conn: Connection, sweep_id: str, configuration: str) -> tuple[int, ...]:
    """With which runs were compared, of this sweep or against this configuration."""
    chosen = or_(promotions.c.sweep_id == sweep_id, promotions.c.configuration == configuration)
    found = conn.execute(select(promotions.c.seeds).where(chosen)).scalars()
    return tuple(seed for text in found for seed in json.loads(text))


def fetch_runs(conn: Connection, promotion: PromotionRow, metric: str) -> tuple[PromotionRun, ...]:
    """The runs of a promotion, those that are open as their jobs show them now."""
    of_it = (runs.c.sweep_id == promotion.sweep_id, runs.c.number == promotion.number)
    ordered = select(runs).where(*of_it).order_by(runs.c.pair, runs.c.contender)
    return tuple(_observed(conn, row, metric) for row in conn.execute(ordered).all())


def fetch_promoted(conn: Connection, sweep_id: str, limits: Mapping[str, float | None], now_s: float) -> Promoted:
    """What its promotions have used of these limits; nothing is read where there are none."""
    if limits["time_s"] is None and limits["cost"] is None:
        return NOTHING_PROMOTED
    # Asked at every look at a sweep: what promotions measured is long, and none of it is needed.
    columns = [promotions.c.created_at, promotions.c.finished_at]
    if limits["cost"] is not None:
        columns += [promotions.c.number, promotions.c.contenders]
    known = conn.execute(select(*columns).where(promotions.c.sweep_id == sweep_id)).all()
    time_s = sum(lasted_s(row.created_at, row.finished_at, now_s) for row in known)
    if limits["cost"] is None or not known:
        return Promoted(time_s=time_s)
    resources = {(of.number, c["number"]): c["job"]["resources"] for of in known for c in json.loads(of.contenders)}
    spent = tuple(
        RunsSpent(resources=Resources.model_validate(resources[row.number, row.contender]), seconds=row.seconds)
        for row in conn.execute(_SPENT, {"of": sweep_id})
    )
    return Promoted(time_s=time_s, runs=spent)


def standings_of(conn: Connection, sweep_ids: Sequence[str]) -> dict[str, PromotionStanding]:
    """The latest promotion of each that has any, by the sweep's id."""
    table = promotions
    latest = (
        select(table.c.sweep_id, func.max(table.c.number).label("number"))
        .where(table.c.sweep_id.in_(sweep_ids))
        .group_by(table.c.sweep_id)
        .subquery()
    )
    is_latest = and_(table.c.sweep_id == latest.c.sweep_id, table.c.number == latest.c.number)
    current = configurations.c.version.label("current_version")
    of_it = configurations.c.name == table.c.configuration
    found = conn.execute(select(table, current).join(latest, is_latest).outerjoin(configurations, of_it)).all()
    of_latest = and_(runs.c.sweep_id == latest.c.sweep_id, runs.c.number == latest.c.number)
    counted = (
        select(
            runs.c.sweep_id,
            func.count().label("num_runs"),
            func.sum(_SECONDS).label("seconds"),
            func.count().filter(~runs.c.is_open).label("num_ended"),
        )
        .join(latest, of_latest)
        .outerjoin(jobs, _ITS_JOB)
        .group_by(runs.c.sweep_id)
    )
    counts = {
        row.sweep_id: {"num_runs": row.num_runs, "num_ended": row.num_ended, "seconds": row.seconds}
        for row in conn.execute(counted)
    }
    return {
        row.sweep_id: PromotionStanding(
            promotion=promotion_of(row), current_version=row.current_version, **counts.get(row.sweep_id, {})
        )
        for row in found
    }


@cache
def latest_bytes(dialect: str) -> ColumnElement[int]:
    """What the texts of the latest promotion of a row of ``sweeps`` have in all, in bytes; 0 without one."""
    of_it = select(text_bytes(promotions, dialect)).where(promotions.c.sweep_id == sweeps.c.id)
    return func.coalesce(of_it.order_by(promotions.c.number.desc()).limit(1).scalar_subquery(), 0)


def update_promotion(write: Write, promotion: PromotionRow, columns: dict[str, Any]) -> None:
    """Write columns if nobody has written since the caller read. Raises StaleRowError."""
    same = (
        promotions.c.sweep_id == promotion.sweep_id,
        promotions.c.number == promotion.number,
        promotions.c.changed == promotion.changed,
    )
    written = update(promotions).where(*same).values(**columns, changed=write.change)
    if write.conn.execute(written.returning(promotions.c.number)).one_or_none() is None:
        raise StaleRowError(f"promotion {promotion.number} of {promotion.sweep_id} has changed; read it again")


def insert_promotion(write: Write, sweep_id: str, columns: Mapping[str, Any]) -> None:
    """The next promotion of a sweep; what ``columns`` leave out is as of one that compares nobody."""
    known = select(func.count()).select_from(promotions).where(promotions.c.sweep_id == sweep_id).scalar_subquery()
    given = {
        "sweep_id": sweep_id,
        "number": known + 1,
        "base_version": 0,
        "bundle_id": None,
        "contenders": contenders_text(()),
        "seeds": dumps([]),
        "changed": write.change,
        "created_at": write.now_s,
        "finished_at": write.now_s,
        **columns,
    }
    write.conn.execute(insert(promotions).values(given))


def stop_promotions(write: Write, sweep_id: str, reason: str | None) -> None:
    """Of this sweep nothing is compared any more."""
    going_on = (promotions.c.sweep_id == sweep_id, promotions.c.state == PromotionState.RUNNING)
    columns = {
        "state": PromotionState.STOPPED,
        "reason": reason,
        "bundle_id": None,
        "finished_at": write.now_s,
        "changed": write.change,
    }
    write.conn.execute(update(promotions).where(*going_on).values(columns))


def contenders_text(contenders: Sequence[Contender]) -> str:
    """The column's text."""
    return dumps([{"number": c.number, "params": dict(c.params), "job": dict(c.job)} for c in contenders])


def _observed(conn: Connection, row: Row[Any], metric: str) -> PromotionRun:
    job = fetch_job(conn, row.job_id) if row.is_open else None
    has_ended = row.is_open and (job is None or job.is_ended)
    has_succeeded = job is not None and job.state is JobState.SUCCEEDED
    return PromotionRun(
        contender=row.contender,
        pair=row.pair,
        job_id=row.job_id,
        score=_final_value(conn, row.job_id, metric) if has_succeeded else row.score,
        seconds=row.seconds if job is None else job.worker_s,
        is_open=row.is_open and not has_ended,
        is_news=has_ended,
        job_state=None if job is None else job.state,
    )


def _final_value(conn: Connection, job_id: str, metric: str) -> float | None:
    """What the job reported last; None where it never did, or where that is no number."""
    key = json.dumps(metric)
    told = (points.c.job_id == job_id, points.c["values"].contains(f"{key}:", autoescape=True))
    order = (points.c.cursor.desc(), points.c.attempt.desc(), points.c.lineage.desc())
    text = conn.execute(select(points.c["values"]).where(*told).order_by(*order).limit(1)).scalar_one_or_none()
    value = None if text is None else json.loads(text).get(metric)
    return None if value is None else float(value)

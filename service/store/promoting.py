"""Promotions as the reconciler sees them: what their runs have come to, and writing what was decided."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, insert, select, union, update

from service.configuration_records import named_job
from service.finalists import overtaken
from service.ids import IdSource
from service.labels import CONTENDER_LABEL, PROMOTION_LABEL
from service.promotion_records import (
    INCUMBENT,
    Contender,
    Contest,
    EarlierPromotion,
    End,
    PromotionRow,
    PromotionRun,
    PromotionState,
    PromotionView,
    Step,
)
from service.states import Move, Verb, command
from service.store.configuration_tables import promotion_runs as runs
from service.store.configuration_tables import promotions
from service.store.configurations import fetch_configuration, replace_with
from service.store.database import Database, Write
from service.store.jobs import insert_job
from service.store.moves import fetch_job, move
from service.store.port import StaleRowError
from service.store.promotion_rows import (
    contenders_text,
    fetch_promotions,
    fetch_runs,
    fetch_seeds,
    insert_promotion,
    update_promotion,
)
from service.store.references import UnknownReferenceError, check_references
from service.store.rows import dumps
from service.store.schema import sweeps
from service.store.sweep_rows import fetch_sweep, fetch_trials, samples_per_epoch, update_sweep
from service.sweep_records import ENDED_SWEEPS, SweepRow
from workers.errors import Reason
from workers.spec import JobSpec

# Neither IS NOT NULL nor a plain state: so SQLite looks among those to be promoted, not among all that have ended.
_STATE = func.coalesce(sweeps.c.state, "")
_PROMOTING = union(
    select(sweeps.c.id).where(sweeps.c.promote_to >= "", _STATE.in_(sorted(ENDED_SWEEPS))),
    select(promotions.c.sweep_id).where(promotions.c.state == PromotionState.RUNNING),
    select(runs.c.sweep_id).where(runs.c.is_open),
)
"""Each part by an index: this is asked at every tick, whatever was promoted before."""


def fetch_promoting(conn: Connection) -> list[str]:
    """See ``Survey.promoting``."""
    return sorted(conn.execute(_PROMOTING).scalars())


class PromotingStore:
    """See ``ReconcilerStore`` for the promises."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids = IdSource()

    async def promotion_view(self, sweep_id: str) -> PromotionView | None:
        """All that a decision looks at, or None."""
        return await self._database.read(lambda conn: _view(conn, sweep_id))

    async def begin_promotion(self, view: PromotionView, contest: Contest, fence: int) -> None:
        """Write who is compared, or why nobody is. Raises StaleRowError, FencedOutError."""
        await self._database.write(lambda write: _begin(write, view, contest), fence)

    async def carry_promotion(self, view: PromotionView, step: Step, fence: int) -> None:
        """Write what has ended and what was decided. Raises StaleRowError, TransitionError, FencedOutError."""
        await self._database.write(lambda write: _carry(write, self._ids, view, step), fence)


def _view(conn: Connection, sweep_id: str) -> PromotionView | None:
    sweep = fetch_sweep(conn, sweep_id)
    if sweep is None:
        return None
    known = fetch_promotions(conn, sweep_id)
    open_runs = select(func.min(runs.c.number)).where(runs.c.sweep_id == sweep_id, runs.c.is_open)
    unfinished = conn.execute(open_runs).scalar_one_or_none()
    known = [each for each in known if unfinished is None or each.number <= unfinished]
    latest = known[-1] if known else None
    is_compared = latest is not None and latest.state is PromotionState.RUNNING
    name = latest.configuration if latest is not None and is_compared else sweep.promote_to
    metric, has_cost_limit = sweep.document["metric"], sweep.document["limits"]["cost"] is not None
    return PromotionView(
        sweep=sweep,
        trials=tuple(fetch_trials(conn, sweep_id)) if has_cost_limit or not is_compared else (),
        promotion=latest,
        runs=() if latest is None else fetch_runs(conn, latest, metric),
        earlier=tuple(
            EarlierPromotion(promotion=each, runs=fetch_runs(conn, each, metric) if has_cost_limit else ())
            for each in (known[:-1] if is_compared else ())
        ),
        configuration=None if name is None else fetch_configuration(conn, name),
        seeds=() if is_compared or name is None else fetch_seeds(conn, sweep_id, name),
        samples_per_epoch=samples_per_epoch(conn, sweep_id),
    )


def _begin(write: Write, view: PromotionView, contest: Contest) -> None:
    """Nothing is begun twice: whoever began it before has written the sweep."""
    sweep, configuration, name = view.sweep, view.configuration, view.sweep.promote_to
    assert name is not None, sweep.id
    update_sweep(write, sweep, {"promote_to": None})
    if fetch_configuration(write.conn, name) != configuration:
        raise StaleRowError(f"configuration {name} is no longer the one that was looked at; look again")
    is_refused = contest.refusal is not None
    columns: dict[str, Any] = {
        "configuration": name,
        "base_version": 0 if configuration is None else configuration.version,
        "bundle_id": None if configuration is None or is_refused else configuration.document["bundle"],
        "state": PromotionState.FAILED if is_refused else PromotionState.RUNNING,
        "reason": contest.refusal,
        "contenders": contenders_text(contest.contenders),
        "seeds": dumps(list(contest.seeds)),
        "finished_at": write.now_s if is_refused else None,
    }
    insert_promotion(write, sweep.id, columns)


def _carry(write: Write, ids: IdSource, view: PromotionView, step: Step) -> None:
    promotion = view.promotion
    assert promotion is not None, view.sweep.id
    update_promotion(write, promotion, {} if step.end is None else _ended(write, view.sweep, promotion, step.end))
    for run in view.runs:
        if run.is_news:
            columns = {"score": run.score, "seconds": run.seconds, "is_open": False}
            write.conn.execute(update(runs).where(*_place(promotion, run)).values(columns))
    for run in step.cancel:
        _cancel(write, run)
    contenders = {contender.number: contender for contender in promotion.contenders}
    for number, pair in step.start:
        _start(write, ids, view.sweep, promotion, contenders[number], pair)
    sweep = fetch_sweep(write.conn, promotion.sweep_id)
    if sweep is not None:
        update_sweep(write, sweep, {})  # who looks at the sweep is told


def _place(promotion: PromotionRow, run: PromotionRun) -> tuple[Any, ...]:
    of_it = (runs.c.sweep_id == promotion.sweep_id, runs.c.number == promotion.number)
    return (*of_it, runs.c.contender == run.contender, runs.c.pair == run.pair)


def _ended(write: Write, sweep: SweepRow, promotion: PromotionRow, end: End) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "state": end.state,
        "reason": end.reason,
        "evidence": None if end.evidence is None else dumps(end.evidence),
        "bundle_id": None,
        "finished_at": write.now_s,
    }
    return columns if end.winner is None else {**columns, **_replaced(write, sweep, promotion, end)}


def _replaced(write: Write, sweep: SweepRow, promotion: PromotionRow, end: End) -> dict[str, Any]:
    """The winner is in use from now on, unless there is another configuration by now than was compared with."""
    configuration = fetch_configuration(write.conn, promotion.configuration)
    told = overtaken(sweep, fetch_trials(write.conn, sweep.id), promotion, configuration)
    if configuration is None or told is not None:
        return {"state": PromotionState.FAILED, "reason": told}
    assert end.winner is not None, sweep.id
    job = named_job(end.winner.job, promotion.configuration)
    try:
        check_references(write.conn, job)
    except UnknownReferenceError as error:
        return {"state": PromotionState.FAILED, "reason": f"{end.reason}, and cannot be put: {error}"}
    return {"version": replace_with(write, configuration, job, promotion.sweep_id, end.evidence).version}


def _cancel(write: Write, run: PromotionRun) -> None:
    job = fetch_job(write.conn, run.job_id)
    wanted = None if job is None else command(Verb.CANCEL, job.state, job.attempt)
    if job is not None and isinstance(wanted, Move):
        move(write, job, wanted.to, Reason.CANCELLED_BY_SWEEP, {"goal": wanted.goal, "explanation": None})


def _start(
    write: Write, ids: IdSource, sweep: SweepRow, promotion: PromotionRow, contender: Contender, pair: int
) -> None:
    job = insert_job(write, ids.job_id(write.now_s), _run_spec(sweep, promotion, contender, pair))
    columns = {
        "sweep_id": sweep.id,
        "number": promotion.number,
        "contender": contender.number,
        "pair": pair,
        "job_id": job.id,
        "seconds": 0.0,
        "is_open": True,
    }
    write.conn.execute(insert(runs).values(columns))


def _run_spec(sweep: SweepRow, promotion: PromotionRow, contender: Contender, pair: int) -> JobSpec:
    who = "incumbent" if contender.number == INCUMBENT else f"trial-{contender.number}"
    ending = f"-{who}-run-{pair}"
    job = named_job(contender.job, sweep.name[: 63 - len(ending)].rstrip("-") + ending)
    labels = {**job.labels, PROMOTION_LABEL: sweep.id, CONTENDER_LABEL: who}
    return job.model_copy(update={"seed": promotion.seeds[pair], "labels": labels})

"""Sweeps as the reconciler sees them: what their trials have come to, and writing what was decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, bindparam, insert, or_, select, union, update

from service.ids import IdSource
from service.labels import TRIAL_LABEL
from service.records import JobRow
from service.states import Move, Verb, command
from service.store.configurations import fetch_configuration
from service.store.database import Database, Write, last_change
from service.store.exploiting import decided, offered, ordered_back, taken_over, with_unreported, without_undone
from service.store.forebears import fetch_forebears
from service.store.jobs import insert_job
from service.store.moves import fetch_job, move
from service.store.promotion_rows import fetch_promoted
from service.store.rows import dumps
from service.store.run_settings import order_line
from service.store.schema import jobs, sweeps, trials
from service.store.statements import having
from service.store.sweep_rows import (
    NO_COURSE,
    fetch_places,
    fetch_spent,
    fetch_sweep,
    fetch_trials,
    moved,
    samples_per_epoch,
    sweep_of,
    trial_columns,
    trial_of,
    update_sweep,
)
from service.store.trial_points import last_keys, new_reports
from service.sweep_records import ENDED_SWEEPS, SweepLook, SweepRow, SweepState, SweepView, TrialJob, TrialRow, Wish
from service.sweeping import observed, verb_for
from tuning.orders import NO_PLACES, Advance, Answer, Beginning, Exploit, Finish, Hold, Order, Prune, Resume, Start
from tuning.pruning import rungs_for
from tuning.spec import SweepSpec, trial_spec
from tuning.trial import TrialState
from workers.assignment import SWEEP_LABEL
from workers.errors import Reason
from workers.run_settings import Donor

_LIVE_IDS = union(
    select(sweeps.c.id).where(sweeps.c.state == SweepState.RUNNING), select(trials.c.sweep_id).where(trials.c.is_open)
)
"""Each part by an index: this is asked at every tick, whatever was searched before."""
_LIVE = select(sweeps).where(sweeps.c.id.in_(_LIVE_IDS.scalar_subquery()))
_OPEN = select(trials).where(trials.c.sweep_id == bindparam("of"), trials.c.is_open).order_by(trials.c.number)
_UPDATE_TRIAL = update(trials).where(*having(trials, "sweep_id", "number"))
_OPEN_SINCE = (
    select(trials)
    .outerjoin(jobs, jobs.c.id == trials.c.job_id)
    .where(trials.c.sweep_id == bindparam("of"), trials.c.is_open)
    .where(
        or_(
            trials.c.must_retry,
            trials.c.course != NO_COURSE,
            jobs.c.id.is_(None),
            jobs.c.changed > bindparam("after"),
            trials.c.changed > bindparam("after"),
        )
    )
    .order_by(trials.c.number)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """A look that found nothing new: the state of the sweep then, and the number of the last change."""

    state: SweepState
    change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What a look at an open trial brings: the row as it is to be, and what its job is to be told.

    ``donor``: whose state it is to be told to go on from.
    """

    before: TrialRow
    after: TrialRow
    job: JobRow | None
    verb: Verb | None
    donor: Donor | None = None

    @property
    def is_news(self) -> bool:
        return self.before != self.after or self.verb is not None or self.donor is not None


class SearchStore:
    """See ``ReconcilerStore`` for the promises."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids = IdSource()
        self._looked: dict[str, _Looked] = {}

    async def live_sweeps(self) -> list[SweepRow]:
        """Sweeps that run, or of which a trial has not ended."""
        return await self._database.read(fetch_live_sweeps)

    async def observe_sweep(self, sweep_id: str, fence: int) -> SweepLook | None:
        """Note what jobs say of their trials, and tell jobs what is wanted of them. Raises FencedOutError."""

        looked = self._looked.get(sweep_id)

        def look(conn: Connection) -> tuple[SweepRow | None, int | None]:
            sweep, change = fetch_sweep(conn, sweep_id), last_change(conn)
            now_s = self._database.now_s
            has_news = sweep is not None and any(finding.is_news for finding in _look(conn, sweep, now_s, looked))
            return sweep, None if has_news else change

        def note(write: Write) -> SweepLook | None:
            sweep = fetch_sweep(write.conn, sweep_id)
            if sweep is None:
                return None
            has_told = _note_all(write, sweep, looked)
            return SweepLook(sweep=update_sweep(write, sweep, {}), has_told=has_told)

        sweep, change = await self._database.read(look)
        if change is None:
            return await self._database.write(note, fence)
        if sweep is None or sweep.state in ENDED_SWEEPS:
            self._looked.pop(sweep_id, None)
        else:
            self._looked[sweep_id] = _Looked(state=sweep.state, change=change)
        return None if sweep is None else SweepLook(sweep=sweep, has_told=False)

    async def sweep_view(self, sweep_id: str, after: int, passed_over: Collection[str] = ()) -> SweepView | None:
        """See ``ReconcilerStore.sweep_view``."""

        def work(conn: Connection) -> SweepView | None:
            sweep = fetch_sweep(conn, sweep_id)
            if sweep is None:
                return None
            found = tuple(fetch_trials(conn, sweep_id, after))
            document = sweep.document
            return SweepView(
                sweep=sweep,
                trials=found,
                samples_per_epoch=samples_per_epoch(conn, sweep_id),
                spent=() if document["limits"]["cost"] is None else fetch_spent(conn, sweep_id),
                promoted=fetch_promoted(conn, sweep_id, document["limits"], self._database.now_s),
                places=NO_PLACES if document["population"] is None else fetch_places(conn, sweep_id, passed_over),
            )

        return await self._database.read(work)

    async def beginning(self, sweep: SweepRow) -> Beginning:
        """What a search begins from: other sweeps' trials and configurations as they are now, where they still are."""
        named = dict.fromkeys(name for name in (sweep.spec.promote, sweep.origin and sweep.origin.name) if name)

        def work(conn: Connection) -> Beginning:
            earlier = {of: [trial.for_search() for trial in fetch_trials(conn, of)] for of in sweep.spec.warm_start}
            rows = [row for name in named if (row := fetch_configuration(conn, name)) is not None]
            incumbents = [row.document for row in rows]
            before = fetch_forebears(conn, earlier)
            return Beginning(spec_json=sweep.spec_json, earlier=earlier, forebears=before, incumbents=incumbents)

        return await self._database.read(work)

    async def new_sweep_term(self, sweep: SweepRow, fence: int) -> SweepRow:
        """Count a new controller before it is started. Raises StaleRowError, FencedOutError."""
        return await self._database.write(lambda write: update_sweep(write, sweep, {"term": sweep.term + 1}), fence)

    async def carry_out(self, sweep: SweepRow, answer: Answer, fence: int) -> bool:
        """Write what a search decided, with the jobs that it starts and what others are told, in one transaction.

        False where some order no longer fitted the rows and was left out. Raises StaleRowError when anybody wrote
        the sweep since it was read, FencedOutError.
        """

        looked = self._looked.get(sweep.id)

        def work(write: Write) -> bool:
            held = {trial.number: trial for trial in fetch_trials(write.conn, sweep.id)}
            done = [_carry_out(write, self._ids, sweep, order, held) for order in answer.orders]
            ends = [order for order in answer.orders if isinstance(order, Finish)]
            columns = _finished(sweep, ends[0], write.now_s) if ends else {}
            told = update_sweep(write, sweep, {**columns, "importance": dumps(answer.importance)})
            _note_all(write, told, looked)
            return all(done)

        return await self._database.write(work, fence)


def fetch_live_sweeps(conn: Connection) -> list[SweepRow]:
    """See ``ReconcilerStore.live_sweeps``."""
    return sorted((sweep_of(row) for row in conn.execute(_LIVE)), key=lambda sweep: sweep.id)


def _look(conn: Connection, sweep: SweepRow, now_s: float, looked: _Looked | None) -> list[_Finding]:
    document = sweep.document
    found = _open_trials(conn, sweep, looked)
    findings = [_finding(conn, sweep, trial, document["metric"]) for trial in found if not trial.must_retry]
    if sweep.state is SweepState.RUNNING and any(finding.after.course.taking for finding in findings):
        everyone = {trial.number: trial for trial in fetch_trials(conn, sweep.id)}
        findings = [_with_offer(conn, finding, everyone, now_s) for finding in findings]
    num_running = sum(finding.after.for_search().state is TrialState.RUNNING for finding in findings)
    room = max(0, document["parallel"] - num_running)
    failed = [trial for trial in found if trial.must_retry]
    if sweep.state is SweepState.RUNNING:
        return findings + [_retrial(conn, trial) for trial in failed[:room]]
    is_over = sweep.state is not SweepState.PAUSED
    return findings + [_given_up(trial) for trial in failed if is_over]


def _open_trials(conn: Connection, sweep: SweepRow, looked: _Looked | None) -> list[TrialRow]:
    """Those of which there may be something new: of a sweep with hundreds that wait, a few."""
    if looked is not None and looked.state is sweep.state:
        rows = conn.execute(_OPEN_SINCE, {"of": sweep.id, "after": looked.change}).all()
        if not any(row.must_retry for row in rows):
            return [trial_of(row) for row in rows]
    return [trial_of(row) for row in conn.execute(_OPEN, {"of": sweep.id}).all()]


def _retrial(conn: Connection, trial: TrialRow) -> _Finding:
    job = fetch_job(conn, trial.job_id)
    verb = None if job is None else Verb.RETRY
    return _Finding(before=trial, after=replace(trial, must_retry=False), job=job, verb=verb)


def _given_up(trial: TrialRow) -> _Finding:
    reason = "the sweep ended before it was tried again"
    after = replace(trial, must_retry=False, state=TrialState.FAILED, reason=reason)
    return _Finding(before=trial, after=after, job=None, verb=None)


def _finding(conn: Connection, sweep: SweepRow, trial: TrialRow, metric: str) -> _Finding:
    job = fetch_job(conn, trial.job_id)
    seen, news = new_reports(conn, trial, metric)
    if job is not None and job.is_ended:
        seen, news = with_unreported(conn, seen, news)
        if not (seen.reports or news.reports):
            news = replace(news, others=last_keys(conn, job.id))
    if news.reports:
        news = replace(news, rungs=_rungs(sweep.spec_json, samples_per_epoch(conn, sweep.id)))
    after = without_undone(observed(seen, None if job is None else _trial_job(job), news))
    verb = None if job is None else verb_for(after, job.state, sweep.state)
    # Seconds alone are not worth a write: they come with the next report, and with the end.
    if replace(after, seconds=trial.seconds) == trial:
        after = trial
    return _Finding(before=trial, after=after, job=job, verb=verb)


@lru_cache(maxsize=64)
def _rungs(spec_json: str, samples_per_epoch: int | None) -> tuple[int, ...]:
    """Kept, as every report asks for them, and a space may have hundreds of corners."""
    return rungs_for(SweepSpec.model_validate_json(spec_json), samples_per_epoch)


def _with_offer(conn: Connection, finding: _Finding, everyone: Mapping[int, TrialRow], now_s: float) -> _Finding:
    """With what has come of the state that the trial waits for; one that is told something else waits on."""
    trial = finding.after
    taking = trial.course.taking
    if taking is None or trial.is_ended or finding.verb is not None or finding.job is None:
        return finding
    offer = offered(conn, taking, everyone[taking.donor], now_s)
    if offer is None:
        return finding
    if offer.donor is None:
        return replace(finding, after=replace(trial, course=replace(trial.course, taking=None)))
    return replace(finding, donor=offer.donor)


def _trial_job(job: JobRow) -> TrialJob:
    return TrialJob(
        state=job.state,
        reason=job.reason,
        why=job.failure.message[:300] if job.failure else job.explanation.summary if job.explanation else "",
        samples=job.samples,
        total_samples=job.total_samples,
        worker_s=job.worker_s,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def _note_all(write: Write, sweep: SweepRow, looked: _Looked | None) -> bool:
    """Whether a job was told something."""
    news = [finding for finding in _look(write.conn, sweep, write.now_s, looked) if finding.is_news]
    for finding in news:
        _note(write, sweep, finding)
    return any(finding.verb is not None or finding.donor is not None for finding in news)


def _note(write: Write, sweep: SweepRow, finding: _Finding) -> None:
    trial = finding.after
    if finding.verb is not None and finding.job is not None:
        job = _tell(write, finding.job, finding.verb)
        if finding.verb is Verb.RETRY:
            ordered_back(write, sweep, trial, job)
        is_held = {Verb.PAUSE: True, Verb.RESUME: False}.get(finding.verb, trial.is_held)
        trial = replace(trial, is_held=is_held)
    if finding.donor is not None and finding.job is not None:
        trial = taken_over(write, sweep, trial, finding.job, finding.donor)
    _write_trial(write, sweep.id, trial)


def _tell(write: Write, job: JobRow, verb: Verb) -> JobRow:
    wanted = command(verb, job.state, job.attempt)
    if isinstance(wanted, Move):
        reason = Reason.CANCELLED_BY_SWEEP if verb is Verb.CANCEL else wanted.reason
        columns = {"goal": wanted.goal, "explanation": None, **({"failure": None} if verb is Verb.RETRY else {})}
        return move(write, job, wanted.to, reason, columns)
    return job


def _write_trial(write: Write, sweep_id: str, trial: TrialRow) -> None:
    place = {"of_sweep_id": sweep_id, "of_number": trial.number}
    write.conn.execute(_UPDATE_TRIAL, {**trial_columns(replace(trial, changed=write.change)), **place})


def _carry_out(write: Write, ids: IdSource, sweep: SweepRow, order: Order, held: dict[int, TrialRow]) -> bool:
    """Whether the order fitted."""
    if sweep.state is not SweepState.RUNNING:
        return False
    if isinstance(order, Start):
        return _start(write, ids, sweep, order, held)
    if isinstance(order, Finish):
        for left in [left for left in held.values() if not left.is_ended]:
            _write_trial(write, sweep.id, replace(left, wish=Wish.PRUNE, reason=left.reason or order.reason))
        return True
    if isinstance(order, Exploit):
        changed = decided(write, order, held)
        if changed is not None:
            held[order.number] = changed
            _write_trial(write, sweep.id, changed)
        return changed is not None
    trial = held.get(order.number)
    if trial is None or trial.is_ended or trial.wish is Wish.PRUNE:
        return False
    if isinstance(order, Advance | Resume) and (job := fetch_job(write.conn, trial.job_id)) is not None:
        order_line(write, job, order.until)
    if isinstance(order, Advance):
        return True
    wished = {Hold: Wish.HOLD, Resume: Wish.RUN, Prune: Wish.PRUNE}[type(order)]
    held[order.number] = told = replace(trial, wish=wished, reason=order.reason or None)
    _write_trial(write, sweep.id, told)
    return True


def _start(write: Write, ids: IdSource, sweep: SweepRow, order: Start, held: dict[int, TrialRow]) -> bool:
    if order.number != max(held, default=-1) + 1 or order.number >= sweep.num_trials:
        return False
    spec = trial_spec(sweep.spec, order.number, order.params, order.first_rung)
    labels = {**spec.labels, SWEEP_LABEL: sweep.id, TRIAL_LABEL: str(order.number)}
    job = insert_job(write, ids.job_id(write.now_s), spec.model_copy(update={"labels": labels}), order.until)
    held[order.number] = started = TrialRow(
        number=order.number,
        params=order.params,
        state=TrialState.WAITING,
        wish=Wish.RUN,
        is_held=False,
        must_retry=False,
        value=None,
        reports=(),
        job_id=job.id,
        reason=None,
        seconds=0.0,
        started_at=None,
        finished_at=None,
        changed=write.change,
        seen=0,
    )
    write.conn.execute(insert(trials).values(sweep_id=sweep.id, number=order.number, **trial_columns(started)))
    return True


def _finished(sweep: SweepRow, order: Finish, now_s: float) -> dict[str, Any]:
    to = SweepState.SUCCEEDED if order.has_succeeded else SweepState.FAILED
    return moved(sweep, to, order.reason, now_s)

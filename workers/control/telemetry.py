"""What workers tell, kept until the store has it: records, logs, checkpoints, timeline rows. Pure.

Keys are natural: records by (lineage, round), of which the higher generation's stays, logs by (worker,
byte), checkpoints by path, rows by key. Workers keep what the *store* has not acknowledged, so a full
buffer here takes no more instead of losing anything, and a controller's death loses nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from workers.control.costs import Costs
from workers.control.spans import SpanBuffer
from workers.measures import COMPARED, LoaderChange, MicroChange, RankSpan
from workers.plan import MemberSource, Plan, TimelineKind
from workers.status import (
    Acknowledged,
    CheckpointInfo,
    Cut,
    FailedSave,
    LogChunk,
    RoundRecord,
    TimelineRow,
    WorkerStatus,
)

MAX_RECORDS = 10_000
MAX_LOG_BYTES = 8 * 2**20
MAX_SENT_RECORDS = 2_000
MAX_SENT_LOG_BYTES = 256 * 2**10
MAX_STORED_KEYS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What the store should take next, oldest first; ``is_all`` there is for it to take by now."""

    records: tuple[RoundRecord, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    checkpoints: tuple[CheckpointInfo, ...] = ()
    timeline: tuple[TimelineRow, ...] = ()
    spans: tuple[RankSpan, ...] = ()
    is_all: bool = True


class Telemetry:
    """The buffers of one attempt, of which the store has ``acked`` already.

    ``global_size`` is the spec's, in samples: it turns samples into steps. ``num_news`` counts the records, rows and
    checkpoints that have come, and what came again with something new; ``number`` what ``pending`` has given.
    """

    def __init__(self, global_size: int, acked: Acknowledged) -> None:
        self._global_size = global_size
        self._costs = Costs(global_size, acked)
        self._acked = acked
        self._records: dict[tuple[int, int], RoundRecord] = {}
        self._amended: dict[tuple[int, int], RoundRecord] = {}
        self._stored: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._logs: dict[str, list[LogChunk]] = {}
        self._log_bytes = 0
        self._checkpoints: dict[str, CheckpointInfo] = {}
        self._rows = {row.key: row for row in acked.unpriced if self._costs.is_open(row)}
        for row in self._rows.values():
            self._costs.notice(row)
        self._told: set[str] = set()
        self._spans = SpanBuffer()
        self._sent: Pending = Pending()
        self._redone_from: tuple[int, int] | None = None
        self._redone_by = 0
        self.num_news = self.number = 0

    @property
    def has_room(self) -> bool:
        """Whether more records can be taken; while False, ask no worker for them."""
        return len(self._records) < MAX_RECORDS

    def take(self, status: WorkerStatus) -> None:
        """Keep what one answer of a worker brings; what is here or stored already changes nothing."""
        if status.lineage is not None and status.round is not None:
            self._costs.reach(status.lineage, status.round)
        for record in status.records:
            self._take_record(record)
        self._spans.take(status.spans)
        for cut in status.cuts:
            self._note_cut(cut, status)
        for change in status.micro_changes:
            self._note_micro_change(change, status)
        for loaders in status.loader_changes:
            self._note_loader_change(loaders, status)
        for chunk in status.logs:
            self.take_log(chunk)
        for info in status.checkpoints:
            if info.path not in self._acked.checkpoints:
                self.num_news += info.path not in self._checkpoints
                self._checkpoints[info.path] = info
                self._note_checkpoint(info)
        for failed in status.failed_saves:
            self.note_unstored(_failed_row(failed))
        self._price(self._rows.values())

    def _note_cut(self, cut: Cut, status: WorkerStatus) -> None:
        """A row for the first worker that tells of it: one a kind and attempt."""
        row = TimelineRow(
            key=f"limit/{cut.what}",
            kind=TimelineKind.LIMIT,
            time=cut.time,
            step=(status.cursor or 0) // self._global_size,
            actor="service",
            reason=cut.reason,
            after={"cut": cut.what},
            cost_s=0.0,
            steps_lost=0,
        )
        self._note_repeated(row)

    def _note_micro_change(self, change: MicroChange, status: WorkerStatus) -> None:
        """A row a worker and change."""
        row = TimelineRow(
            key=f"micro_size/{status.worker_id}/{change.n}",
            kind=TimelineKind.BATCH,
            time=change.time,
            step=(status.cursor or 0) // self._global_size,
            actor="micro_size" if change.seconds or change.compared else "controller",
            reason=f"worker {status.worker_id}: {change.reason}",
            before={} if change.before is None else {_SIZE_KEYS.get(change.unit, change.unit): change.before},
            after={_SIZE_KEYS.get(change.unit, change.unit): change.after, **_seconds(change), **_compared(change)},
            cost_s=change.cost_s,
            steps_lost=0,
        )
        self._note_repeated(row)

    def _note_loader_change(self, change: LoaderChange, status: WorkerStatus) -> None:
        """A row a worker and change."""
        row = TimelineRow(
            key=f"loaders/{status.worker_id}/{change.n}",
            kind=TimelineKind.BATCH,
            time=change.time,
            step=(status.cursor or 0) // self._global_size,
            actor="loaders",
            reason=f"worker {status.worker_id}: {change.reason}",
            before={"loaders": change.before},
            after={"loaders": change.after, **_compared(change)},
            cost_s=change.cost_s,
            steps_lost=0,
        )
        self._note_repeated(row)

    def _note_repeated(self, row: TimelineRow) -> None:
        """Keep a row that workers tell of in every answer, once."""
        if row.key not in self._told and row.key not in self._acked.timeline:
            self._told.add(row.key)
            self._keep(row)

    def _note_checkpoint(self, info: CheckpointInfo) -> None:
        key = f"checkpoint/{info.path}"
        if key in self._rows or key in self._acked.timeline:
            return
        metric = {} if info.metric is None else {"metric": info.metric}
        row = TimelineRow(
            key=key,
            kind=TimelineKind.CHECKPOINT,
            time=info.created_at,
            step=info.step,
            actor="controller",
            reason=info.reason,
            after={
                "size_bytes": info.size_bytes,
                "written_bytes": info.written_bytes,
                "is_final": info.is_final,
                **metric,
            },
            cost_s=info.held_s,
            steps_lost=0,
        )
        self._keep(row)

    def note(self, row: TimelineRow) -> None:
        """Keep a row, or complete one that is kept."""
        self._keep(row)
        self._costs.notice(row)
        self._price([row])

    def _keep(self, row: TimelineRow) -> None:
        self.num_news += self._rows.get(row.key) != row
        self._rows[row.key] = row

    def note_unstored(self, row: TimelineRow) -> None:
        """Keep a row unless the store has one by its key."""
        if row.key not in self._acked.timeline:
            self.note(row)

    def formed(self, plan: Plan) -> None:
        """A plan with a new generation was issued: rounds above its source's may be done, and told, again."""
        if isinstance(plan.source, MemberSource):
            self._redone_from = (plan.lineage, plan.source.round)
            self._redone_by = plan.generation

    def acknowledge(self, acked: Acknowledged) -> None:
        """Forget what the store has: of the last ``pending`` all, where it says that it took that one."""
        self._acked = acked
        sent = self._sent if acked.answer == self.number else Pending()
        for key in [key for key in self._records if key <= acked.rounds]:
            self._stored[key] = self._records.pop(key).generation
        while len(self._stored) > MAX_STORED_KEYS:
            self._stored.popitem(last=False)
        for record in sent.records:
            if self._amended.get(record.key) == record:
                del self._amended[record.key]
                self._stored[record.key] = record.generation
        for worker_id in list(self._logs):
            self._forget_log(worker_id, acked.log_offsets.get(worker_id, 0))
        for path in acked.checkpoints & self._checkpoints.keys():
            del self._checkpoints[path]
        self._spans.stored(sent.spans)
        for row in sent.timeline:
            # Of what workers repeat an earlier controller may have told, too long ago for its key to be acknowledged.
            is_stored = row.key in acked.timeline or row.key in self._told
            if is_stored and self._rows.get(row.key) == row and not self._costs.is_open(row):
                del self._rows[row.key]

    def pending(self) -> Pending:
        """The next portion for the store: what is oldest, bounded, with every row whose price is news."""
        self.number += 1
        records = sorted(self._records.items())[:MAX_SENT_RECORDS]
        amended = sorted(self._amended.items())
        logs = tuple(self._portion_of_logs())
        self._sent = Pending(
            records=tuple(r for _, r in (*amended, *records)),
            logs=logs,
            checkpoints=tuple(self._checkpoints.values()),
            timeline=tuple(r for r in self._rows.values() if not self._is_stored_open(r)),
            spans=self._spans.pending(),
            is_all=len(records) == len(self._records) and sum(len(c.data) for c in logs) == self._log_bytes,
        )
        return self._sent

    def acked_for(self, worker_id: str, status: WorkerStatus | None) -> Acknowledged:
        """What one worker may forget: never a round that it has yet to commit, or to tell, itself."""
        rounds = self._acked.rounds
        if status is not None and status.lineage is not None and status.round is not None:
            rounds = min(rounds, (status.lineage, status.round))
        if self._redone_from is not None:
            rounds = min(rounds, self._redone_from)
        # Logs stay in their files, so a worker may be told what is here but not stored yet.
        offset = self.log_end(worker_id)
        return Acknowledged(rounds=rounds, log_offsets={worker_id: offset}, checkpoints=self._acked.checkpoints)

    def log_end(self, worker_id: str) -> int:
        """The byte of a worker's log up to which everything is here or stored."""
        chunks = self._logs.get(worker_id)
        return _end(chunks[-1]) if chunks else self._acked.log_offsets.get(worker_id, 0)

    def take_log(self, chunk: LogChunk, *, is_last: bool = False) -> None:
        """Keep what of a chunk is new. What adjoins stays in one piece, so that a line is never torn for long.

        Where there is no room none is kept, as it is read again later; but for what ``is_last``, which nobody reads
        again.
        """
        known = self.log_end(chunk.worker_id)
        if _end(chunk) <= known or (self._log_bytes >= MAX_LOG_BYTES and not is_last):
            return
        fresh = _from(chunk, max(chunk.offset, known))
        self._log_bytes += len(fresh.data)
        chunks = self._logs.setdefault(chunk.worker_id, [])
        if chunks and _end(chunks[-1]) == fresh.offset:
            last = chunks.pop()
            rank = last.rank if fresh.rank is None else fresh.rank
            fresh = replace(fresh, offset=last.offset, rank=rank, data=last.data + fresh.data)
        chunks.append(fresh)

    def _take_record(self, record: RoundRecord) -> None:
        if record.generation >= self._redone_by:
            self._redone_from = None
        known = self._records.get(record.key)
        if record.key <= self._acked.rounds:
            # Of what a predecessor stored the generation is not known here; the store keeps the higher one.
            if record.generation > self._stored.get(record.key, 0):
                self.num_news += self._amended.get(record.key) != record
                self._amended[record.key] = record
                self._costs.observe(record)
        elif known is None or record.generation > known.generation:
            self._costs.observe(record)
            if known is not None or self.has_room:
                self.num_news += 1
                self._records[record.key] = record

    def _price(self, rows: Iterable[TimelineRow]) -> None:
        for row in list(rows):
            self._keep(self._costs.price(row))

    def _is_stored_open(self, row: TimelineRow) -> bool:
        return row.key in self._acked.timeline and self._costs.is_open(row)

    def _forget_log(self, worker_id: str, offset: int) -> None:
        old = self._logs.pop(worker_id)
        kept = [_from(chunk, max(chunk.offset, offset)) for chunk in old if _end(chunk) > offset]
        self._log_bytes -= sum(len(c.data) for c in old) - sum(len(c.data) for c in kept)
        if kept:
            self._logs[worker_id] = kept

    def _portion_of_logs(self) -> list[LogChunk]:
        """As much as may be sent, each worker's oldest first."""
        chosen: list[LogChunk] = []
        room = MAX_SENT_LOG_BYTES
        for chunk in (c for chunks in self._logs.values() for c in chunks):
            if room > 0:
                chosen.append(replace(chunk, data=chunk.data[:room]))
                room -= len(chunk.data)
        return chosen


_SIZE_KEYS = {"samples": "micro_size", "padded tokens": "micro_tokens", "tokens": "micro_tokens"}


def _seconds(change: MicroChange) -> dict[str, object]:
    """What was measured, as a timeline row can hold it."""
    if not change.seconds:
        return {}
    return {"seconds_a_sample": {str(size): float(f"{value:.4g}") for size, value in change.seconds.items()}}


def _compared(change: MicroChange | LoaderChange) -> dict[str, object]:
    return {} if change.compared is None else {COMPARED: asdict(change.compared)}


def _failed_row(failed: FailedSave) -> TimelineRow:
    return TimelineRow(
        key=f"checkpoint/{failed.path}/failed",
        kind=TimelineKind.CHECKPOINT,
        time=failed.time,
        step=failed.step,
        actor="controller",
        reason=failed.message,
        after={"failed": True},
        cost_s=0.0,
    )


def _end(chunk: LogChunk) -> int:
    return chunk.offset + len(chunk.data)


def _from(chunk: LogChunk, offset: int) -> LogChunk:
    return replace(chunk, offset=offset, data=chunk.data[offset - chunk.offset :]) if offset > chunk.offset else chunk

"""What a controller's answer brings, beside the one before. Pure."""

from __future__ import annotations

from dataclasses import replace

from workers.status import JobSnapshot, Phase


def is_news(now: JobSnapshot, before: JobSnapshot | None) -> bool:
    """Whether an answer brings anything to store, or tells of another state of the run than the one before."""
    if before is None or _places(now) != _places(before):
        return True
    told = replace(before, records=(), logs=(), timeline=(), checkpoints=(), spans=())
    return now != replace(told, workers=now.workers, number=now.number)


def stands(snapshot: JobSnapshot) -> bool:
    """Whether its workers wait for a word on how far to train."""
    return any(view.phase is Phase.HELD for view in snapshot.workers)


def has_told_all(snapshot: JobSnapshot) -> bool:
    """Whether its workers wait for a word and this brings the last step that they have done."""
    return stands(snapshot) and bool(snapshot.records) and snapshot.records[-1].cursor >= snapshot.cursor


def _places(snapshot: JobSnapshot) -> list[tuple[str, int | None, Phase]]:
    return [(view.worker_id, view.rank, view.phase) for view in snapshot.workers]

"""Words on nodes: who may be used for what, what was decided about them, and where workers were lost."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from sqlalchemy import Connection, delete, func, insert, select, update

from service.machines import Fate, dropped_told, moved_told
from service.records import ClusterEvent, Duty, Loss, NodeMark
from service.store.database import Database, Write
from service.store.schema import IS_LOSS, cluster_events, installation, node_marks, timeline

MAX_EVENTS = 500
_MARKS = select(node_marks)


class NodeStore:
    """Both sides: a user's words, and the reconciler's own, which are fenced."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def node_marks(self) -> dict[str, NodeMark]:
        """The latest word on each node of which there is one, by the node's id."""
        return await self._database.read(fetch_marks)

    async def mark_node(self, mark: NodeMark, text: str) -> None:
        """Store somebody's word, in place of an earlier one, and ``text`` among the cluster's events."""
        await self._database.write(lambda write: _mark(write, mark, text))

    async def quarantine(self, mark: NodeMark, text: str, fence: int) -> None:
        """As ``mark_node``, by the reconciler. Raises FencedOutError."""
        await self._database.write(lambda write: _mark(write, mark, text), fence)

    async def note_on_cluster(self, node_id: str | None, text: str, fence: int) -> None:
        """An event without a mark; nothing happens where it is the latest on that node, or on none.

        Raises FencedOutError.
        """

        await self._database.write(lambda write: _tell(write, node_id, "service", text), fence)

    async def settle_marks(self, fate: Fate, fence: int) -> None:
        """Carry out what becomes of words on nodes that are gone, with an event each. Raises FencedOutError.

        One that somebody has changed meanwhile stays as it is.
        """

        def work(write: Write) -> None:
            for mark in fate.dropped:
                if _taken(write, mark) and mark.duty is not Duty.ACTIVE:
                    _tell(write, mark.node_id, "service", dropped_told(mark))
            for node_id, mark in fate.moved.items():
                if _taken(write, replace(mark, node_id=node_id)) and mark.node_id not in fetch_marks(write.conn):
                    _mark(write, mark, moved_told(mark))

        await self._database.write(work, fence)

    async def losses(self, since: float) -> list[Loss]:
        """What jobs lost after ``since`` (Unix seconds), oldest first: one for all that a row of the timeline
        names on a node.
        """
        columns = (timeline.c.job_id, timeline.c.time, timeline.c.before)
        statement = select(*columns).where(IS_LOSS, timeline.c.time > since).order_by(timeline.c.time)

        def work(conn: Connection) -> list[Loss]:
            return [loss for row in conn.execute(statement) for loss in _losses(row.job_id, row.time, row.before)]

        return await self._database.read(work)

    async def cluster_events(self, limit: int) -> list[ClusterEvent]:
        """What was decided of late, newest first."""
        statement = select(cluster_events).order_by(cluster_events.c.seq.desc()).limit(limit)

        def work(conn: Connection) -> list[ClusterEvent]:
            return [
                ClusterEvent(seq=row.seq, time=row.time, node_id=row.node_id, actor=row.actor, text=row.text)
                for row in conn.execute(statement)
            ]

        return await self._database.read(work)


def _losses(job_id: str, time: float, before: str) -> list[Loss]:
    told = json.loads(before)
    nodes = {lost["node_id"] for lost in told.get("lost", ())} - {""}
    spared = set(told.get("spared", ()))
    return [
        Loss(job_id=job_id, node_id=node_id, time=time, spared_elsewhere=bool(spared - {node_id}))
        for node_id in sorted(nodes)
    ]


def fetch_marks(conn: Connection) -> dict[str, NodeMark]:
    return {
        row.node_id: NodeMark(
            node_id=row.node_id,
            name=row.name,
            duty=Duty(row.duty),
            actor=row.actor,
            reason=row.reason,
            since=row.since,
        )
        for row in conn.execute(_MARKS)
    }


def _taken(write: Write, mark: NodeMark) -> bool:
    """Whether the word was still there, and is no longer."""
    of_word = (node_marks.c.node_id == mark.node_id, node_marks.c.since == mark.since)
    return write.conn.execute(delete(node_marks).where(*of_word)).rowcount > 0


def _mark(write: Write, mark: NodeMark, text: str) -> None:
    write.conn.execute(delete(node_marks).where(node_marks.c.node_id == mark.node_id))
    write.conn.execute(insert(node_marks).values(**asdict(mark)))
    _tell(write, mark.node_id, mark.actor, text)


def _tell(write: Write, node_id: str | None, actor: str, text: str) -> None:
    """Add an event, unless it is the latest on that node."""
    events = cluster_events.c
    last = select(events.text).where(events.node_id == node_id).order_by(events.seq.desc()).limit(1)
    if write.conn.execute(last).scalar_one_or_none() == text:
        return
    seq = write.conn.execute(select(func.coalesce(func.max(cluster_events.c.seq), 0) + 1)).scalar_one()
    write.conn.execute(
        insert(cluster_events).values(seq=seq, time=write.now_s, node_id=node_id, actor=actor, text=text)
    )
    write.conn.execute(delete(cluster_events).where(cluster_events.c.seq <= seq - MAX_EVENTS))
    write.conn.execute(update(installation).values(cluster_changed=write.change))

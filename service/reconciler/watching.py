"""Watching the nodes: words on machines go with them, and a node that loses workers again and again is quarantined."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from service.avoidance import HISTORY_S, suspects
from service.machines import fate_of, has_own_name
from service.reconciler.incidents import Incidents
from service.reconciler.pursuit import Office
from service.records import ClusterView, Duty, NodeMark

log = structlog.get_logger("concertina.reconciler")


class Watching:
    """The nodes as one leader sees them. Both methods give the words that hold then, by node id.

    They raise FencedOutError.
    """

    def __init__(self, office: Office) -> None:
        self._office = office
        self._incidents = Incidents(office.monotonic_s)

    async def settled(self, view: ClusterView, marks: Mapping[str, NodeMark]) -> Mapping[str, NodeMark]:
        """Before anybody is placed on a machine that has come back, what was said of it holds again."""
        fate = fate_of(view.nodes, marks, has_autoscaler=view.autoscaling is not None)
        if not fate:
            return marks
        await self._office.store.settle_marks(fate, self._office.fence)
        return await self._office.store.node_marks()

    async def judged(self, view: ClusterView, num_jobs: int) -> Mapping[str, NodeMark]:
        """``num_jobs`` have workers now."""
        store, fence, now = self._office.store, self._office.fence, self._office.clock()
        # As they are now: whoever has just taken over knows of none yet, and somebody's word ends what was before it.
        marks = self._incidents.marks(await store.node_marks(), now)
        losses = self._incidents.losses(await store.losses(now - HISTORY_S), now)
        for suspect in suspects(view.nodes, marks, losses, now, num_jobs):
            node, why = suspect.node, suspect.reason
            if suspect.is_last:
                text = f"Node {node.name} stays in use although {why}: there is no other to use."
                await store.note_on_cluster(node.node_id, text, fence)
                continue
            log.warning("node quarantined", node=node.node_id, why=why)
            mark = NodeMark(
                node_id=node.node_id,
                name=node.name if has_own_name(node, view.nodes) else "",
                duty=Duty.QUARANTINED,
                actor="service",
                reason=why,
                since=now,
            )
            await store.quarantine(mark, f"Node {node.name} is quarantined: {why}.", fence)
        return await store.node_marks()

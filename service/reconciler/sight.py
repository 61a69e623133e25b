"""Which nodes see the storage: workers write checkpoints to it wherever they run, so it is tried and not guessed."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Iterable
from pathlib import Path

import structlog

from service.patience import answered
from service.ports import ClusterLostError, ClusterPort
from service.records import NodeView
from workers.local_storage import check_mark
from workers.status import AvoidedNode

log = structlog.get_logger("concertina.reconciler")

TRY_S = 10.0
PROBE = ".probe-"


class StorageSight:
    """Lays a file into the storage and lets every node look for it, each until it has seen it once."""

    def __init__(self, cluster: ClusterPort, storage: Path) -> None:
        self._cluster, self._storage = cluster, storage
        self._seeing: set[str] = set()
        self._tried: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._tried_s = float("-inf")

    async def blind(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        """The living nodes that do not see the storage, after trying those that have not seen it yet.

        Raises ClusterLostError; OSError where the storage cannot be written to, or does not answer.
        """
        unproven = self._unproven(nodes)
        if unproven:
            probe = self._storage / f"{PROBE}{secrets.token_hex(8)}"
            await answered(functools.partial(_lay, probe))
            try:
                self._seeing |= await self._cluster.who_sees(str(probe), [node.node_id for node in unproven])
            finally:
                await answered(functools.partial(probe.unlink, missing_ok=True))
        return self._unproven(unproven)

    def avoided(self, nodes: Iterable[NodeView], now_s: float) -> tuple[AvoidedNode, ...]:
        """The living nodes of which it is not known yet that they see the storage; they are tried meanwhile."""
        unproven = self._unproven(nodes)
        # A node that has just come is tried at once: a job may wait for it.
        is_due = now_s - self._tried_s >= TRY_S or not self._tried.issuperset(node.node_id for node in unproven)
        if unproven and self._task is None and is_due:
            self._tried_s = now_s
            self._tried |= {node.node_id for node in unproven}
            self._task = asyncio.create_task(self._try(unproven))
        return tuple(
            AvoidedNode(
                node_id=node.node_id,
                actor="service",
                reason=f"node {node.name} has not been found to see the storage {self._storage}",
            )
            for node in unproven
        )

    async def _try(self, nodes: list[NodeView]) -> None:
        try:
            if blind := await self.blind(nodes):
                log.warning("nodes do not see the storage", nodes=[n.name for n in blind], storage=str(self._storage))
        except (ClusterLostError, OSError) as error:
            log.warning("the storage could not be tried", error=str(error))
        finally:
            self._task = None

    def _unproven(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        return [node for node in nodes if node.is_alive and node.node_id not in self._seeing]


def refusal(blind: list[NodeView], storage: str) -> str:
    """Why this cluster cannot work with this storage, and what to do."""
    names = ", ".join(f"{node.name} ({node.node_id[:8]})" for node in blind[:4])
    more = f" and {len(blind) - 4} more" if len(blind) > 4 else ""
    return (
        f"not every node of the Ray sees the storage {storage}: a file laid there was not found on {names}{more}; "
        "give `serve` a folder that all of them share by --storage"
    )


def _lay(probe: Path) -> None:
    check_mark(probe.parent)
    for left in probe.parent.glob(f"{PROBE}*"):  # by one that was killed before it took it away
        left.unlink(missing_ok=True)
    probe.touch()

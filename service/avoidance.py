"""Which nodes take no workers now, and which have failed too often to take more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.records import Duty, Loss, NodeMark, NodeView
from workers.status import AvoidedNode

MAX_LOSSES = 3
WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that lost ``num_losses`` workers within ``WINDOW_S``; ``is_last`` means that no other is left to use."""

    node: NodeView
    num_losses: int
    is_last: bool

    @property
    def reason(self) -> str:
        """Why it is quarantined, in words."""
        return f"{self.num_losses} workers were lost on it within {WINDOW_S / 60:.0f} minutes"


def avoided(nodes: Sequence[NodeView], marks: Mapping[str, NodeMark]) -> tuple[AvoidedNode, ...]:
    """The living nodes on which no worker shall be, by somebody's word or because the cluster takes them away."""
    found = []
    for node in nodes:
        mark = marks.get(node.node_id)
        if not node.is_alive:
            continue
        if mark is not None and mark.duty is not Duty.ACTIVE:
            told = (
                f"node {node.name} is {mark.duty}: {mark.reason}" if mark.reason else f"node {node.name} is {mark.duty}"
            )
            found.append(AvoidedNode(node_id=node.node_id, actor=mark.actor, reason=told))
        elif node.is_leaving:
            told = f"the cluster is taking node {node.name} away"
            found.append(AvoidedNode(node_id=node.node_id, actor="cluster", reason=told))
    return tuple(found)


def usable(nodes: Iterable[NodeView], avoid: Iterable[AvoidedNode]) -> tuple[NodeView, ...]:
    """The nodes on which workers may be placed."""
    shunned = {node.node_id for node in avoid}
    return tuple(node for node in nodes if node.is_alive and node.node_id not in shunned)


def suspects(
    nodes: Sequence[NodeView], marks: Mapping[str, NodeMark], losses: Sequence[Loss], now: float
) -> list[Suspect]:
    """Usable nodes with too many losses of late, worst first; what came before somebody's word on a node is past.

    The last usable node is only told of: quarantine would stop every job.
    """
    left = list(usable(nodes, avoided(nodes, marks)))
    counts = {node.node_id: _count(node, marks.get(node.node_id), losses, now) for node in left}
    found = []
    for node in sorted(left, key=lambda n: -counts[n.node_id]):
        if counts[node.node_id] >= MAX_LOSSES:
            found.append(Suspect(node, counts[node.node_id], is_last=len(left) == 1))
            left = [other for other in left if other is not node] if len(left) > 1 else left
    return found


def _count(node: NodeView, mark: NodeMark | None, losses: Sequence[Loss], now: float) -> int:
    since = max(now - WINDOW_S, mark.since if mark else 0.0)
    return sum(loss.node_id == node.node_id and loss.time > since for loss in losses)

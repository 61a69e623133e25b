"""Which nodes take no workers now, and which have failed too often to take more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.machines import as_called_now
from service.records import Duty, Loss, NodeMark, NodeView
from workers.status import AvoidedNode

MAX_LOSSES = 3
WINDOW_S = 600.0
HISTORY_S = 3600.0
"""How far back a job's losses on other nodes speak for a node: a job that fails wherever it goes is itself at fault."""
INCIDENT_S = 5.0
"""What a job loses on a node within this time of the first loss has one cause."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that failed ``num_losses`` times within ``WINDOW_S``; ``is_last`` means that no other is left to use."""

    node: NodeView
    num_losses: int
    is_last: bool

    @property
    def reason(self) -> str:
        """Why it is quarantined, in words."""
        return f"jobs lost workers on it {self.num_losses} times within {WINDOW_S / 60:.0f} minutes"


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
            found.append(AvoidedNode(node_id=node.node_id, actor=mark.actor, reason=told, goes_at=node.goes_at))
        elif node.is_leaving:
            told = f"the cluster is taking node {node.name} away"
            found.append(AvoidedNode(node_id=node.node_id, actor="cluster", reason=told, goes_at=node.goes_at))
    return tuple(found)


def usable(nodes: Iterable[NodeView], avoid: Iterable[AvoidedNode]) -> tuple[NodeView, ...]:
    """The nodes on which workers may be placed."""
    shunned = {node.node_id for node in avoid}
    return tuple(node for node in nodes if node.is_alive and node.node_id not in shunned)


def suspects(
    nodes: Sequence[NodeView], marks: Mapping[str, NodeMark], losses: Sequence[Loss], now: float, num_jobs: int
) -> list[Suspect]:
    """Usable nodes that failed too often of late, worst first; what came before somebody's word on a node is past.

    ``losses`` are those of ``HISTORY_S``, oldest first; ``num_jobs`` have workers now. What a single job lost counts
    only where the node is at fault rather than the job. What a machine lost before it started again counts too. The
    last usable node is only told of: quarantine would stop every job.
    """
    left = list(usable(nodes, avoided(nodes, marks)))
    incidents = _incidents(as_called_now(losses, nodes))
    counts = {}
    for node in left:
        mark = marks.get(node.node_id)
        since = max(now - WINDOW_S, mark.since if mark else 0.0)
        blaming = [loss for loss in incidents if loss.node_id == node.node_id and loss.time > since]
        is_blamed = len(left) == 1 or _is_at_fault(blaming, incidents, num_jobs)
        counts[node.node_id] = len(blaming) if is_blamed else 0
    found = []
    for node in sorted(left, key=lambda n: -counts[n.node_id]):
        if counts[node.node_id] >= MAX_LOSSES:
            found.append(Suspect(node, counts[node.node_id], is_last=len(left) == 1))
            left = [other for other in left if other is not node] if len(left) > 1 else left
    return found


def _incidents(losses: Sequence[Loss]) -> list[Loss]:
    """The first of those of one job on one node that have one cause."""
    begun: dict[tuple[str, str], float] = {}
    found = []
    for loss in losses:
        key = (loss.job_id, loss.node_id)
        if key not in begun or loss.time - begun[key] > INCIDENT_S:
            begun[key] = loss.time
            found.append(loss)
    return found


def _is_at_fault(blaming: Sequence[Loss], incidents: Sequence[Loss], num_jobs: int) -> bool:
    """Whether these incidents speak against their node: two jobs say so, or one that does well on other nodes."""
    jobs = {loss.job_id for loss in blaming}
    if len(jobs) != 1:
        return len(jobs) > 1
    (job_id,), node_id = jobs, blaming[0].node_id
    num_elsewhere = sum(loss.job_id == job_id and loss.node_id != node_id for loss in incidents)
    is_seen_elsewhere = num_jobs <= 1 or any(loss.spared_elsewhere for loss in blaming)
    return is_seen_elsewhere and MAX_LOSSES * num_elsewhere < len(blaming)

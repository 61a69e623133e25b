"""On which nodes a process waits ready to become a worker, and how many. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from service.records import NodeView


def wanted(nodes: Iterable[NodeView], per_node: int, *, has_autoscaler: bool) -> dict[str, int]:
    """How many spares to have, by the ids of the ``nodes`` that take workers; on all others there shall be none.

    Where there is no room for another worker none is begun, as it would only take the CPU from those that train.
    On a node that is idle a spare would keep the autoscaler from taking it away.
    """
    if per_node == 0:
        return {}
    used = [node for node in nodes if not has_autoscaler or not _is_idle(node)]
    return {node.node_id: min(per_node, int(node.free["cpus"])) for node in used}


def _is_idle(node: NodeView) -> bool:
    return all(node.free[kind] >= amount for kind, amount in node.total.items())

"""Machines that start again are other nodes to Ray: what was said of them, and what was lost there, goes on. Pure.

A machine is known by its node's name, where no other living node has that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.records import Duty, Loss, NodeMark, NodeView

MAX_AWAITED = 200
"""Words on machines that are away, the latest ones."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of words on nodes that are gone: by those nodes' ids, ``moved`` are those that came back."""

    moved: Mapping[str, NodeMark]
    dropped: Sequence[NodeMark]

    def __bool__(self) -> bool:
        return bool(self.moved or self.dropped)


def fate_of(nodes: Sequence[NodeView], marks: Mapping[str, NodeMark], *, has_autoscaler: bool) -> Fate:
    """What becomes of the words ``marks`` (by node id) as the cluster is now.

    Where an autoscaler brings the nodes, one of the same name may be another machine.
    """
    living, ids = {node.node_id for node in nodes if node.is_alive}, _living_ids(nodes)
    gone = sorted((mark for mark in marks.values() if mark.node_id not in living), key=lambda mark: -mark.since)
    moved: dict[str, NodeMark] = {}
    dropped, spoken_of = [], set(marks)
    for number, mark in enumerate(gone):
        now_called = ids.get(mark.name)
        if has_autoscaler or not mark.name or now_called in spoken_of or number >= MAX_AWAITED:
            dropped.append(mark)
        elif now_called is not None:
            moved[mark.node_id] = replace(mark, node_id=now_called)
            spoken_of.add(now_called)
    return Fate(moved, dropped)


def moved_told(mark: NodeMark) -> str:
    """A word that has come back with its machine, as an event."""
    told = f": {mark.reason}" if mark.reason else ""
    if mark.duty is Duty.ACTIVE:
        return f"Node {mark.name} has come back, and may be used{told}."
    return f"Node {mark.name} has come back, and is {mark.duty} as it was{told}."


def dropped_told(mark: NodeMark) -> str:
    """A word that has gone with its node, as an event."""
    node = f"Node {mark.name or mark.node_id[:8]}"
    return f"{node} is gone, and with it the word that it is {mark.duty}: one that comes now is another."


def has_own_name(node: NodeView, nodes: Sequence[NodeView]) -> bool:
    """Whether no other living node has its name."""
    return _living_ids(nodes).get(node.name) == node.node_id


def as_called_now(losses: Iterable[Loss], nodes: Sequence[NodeView]) -> list[Loss]:
    """With the ids that machines have now in place of those that they had."""
    ids = _living_ids(nodes)
    now_called = {node.node_id: ids[node.name] for node in nodes if not node.is_alive and node.name in ids}
    return [replace(loss, node_id=now_called.get(loss.node_id, loss.node_id)) for loss in losses]


def _living_ids(nodes: Sequence[NodeView]) -> dict[str, str]:
    """Of each name that one living node has alone, that node's id."""
    living = [node for node in nodes if node.is_alive]
    counts = Counter(node.name for node in living)
    return {node.name: node.node_id for node in living if counts[node.name] == 1}

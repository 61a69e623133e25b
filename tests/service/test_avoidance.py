"""Which nodes take no workers, and when one has failed too often."""

from __future__ import annotations

from service.avoidance import MAX_LOSSES, WINDOW_S, avoided, suspects, usable
from service.records import Duty, Loss, NodeMark, NodeView

NOW = 1e9


def node(name: str, *, is_alive: bool = True, is_leaving: bool = False) -> NodeView:
    return NodeView(
        node_id=f"id-{name}", name=name, is_alive=is_alive, total={"cpus": 2.0}, free={}, is_leaving=is_leaving
    )


def mark(name: str, duty: Duty, since: float = NOW) -> dict[str, NodeMark]:
    return {f"id-{name}": NodeMark(node_id=f"id-{name}", duty=duty, actor="admin", reason="a new disk", since=since)}


def lost(name: str, *ages_s: float) -> list[Loss]:
    return [Loss(f"id-{name}", NOW - age_s) for age_s in ages_s]


def test_drained_quarantined_and_leaving_nodes_take_no_workers() -> None:
    nodes = [node("a"), node("b"), node("c"), node("d", is_leaving=True), node("e", is_alive=False)]
    marks = mark("a", Duty.DRAINED) | mark("b", Duty.QUARANTINED) | mark("c", Duty.ACTIVE) | mark("e", Duty.DRAINED)
    avoid = avoided(nodes, marks)
    assert [(n.node_id, n.actor, n.reason) for n in avoid] == [
        ("id-a", "admin", "node a is drained: a new disk"),
        ("id-b", "admin", "node b is quarantined: a new disk"),
        ("id-d", "cluster", "the cluster is taking node d away"),
    ]
    assert [n.name for n in usable(nodes, avoid)] == ["c"]


def test_three_losses_within_the_window_make_a_suspect() -> None:
    nodes = [node("a"), node("b")]
    few, old = lost("a", *range(MAX_LOSSES - 1)), lost("a", WINDOW_S + 1)
    assert suspects(nodes, {}, few + old, NOW) == []
    (found,) = suspects(nodes, {}, few + lost("a", WINDOW_S - 1) + lost("b", 1.0), NOW)
    assert (found.node.name, found.num_losses, found.is_last) == ("a", MAX_LOSSES, False)


def test_losses_from_before_somebodys_word_are_past() -> None:
    nodes, losses = [node("a"), node("b")], lost("a", 10.0, 20.0, 30.0)
    assert suspects(nodes, mark("a", Duty.ACTIVE, since=NOW - 5.0), losses, NOW) == []
    assert suspects(nodes, mark("a", Duty.QUARANTINED, since=NOW - 60.0), losses, NOW) == []


def test_the_last_usable_node_is_only_told_of() -> None:
    nodes = [node("a"), node("b"), node("c")]
    losses = lost("a", 1.0, 2.0, 3.0) + lost("b", 1.0, 2.0, 3.0, 4.0)
    found = suspects(nodes, mark("c", Duty.DRAINED), losses, NOW)
    assert [(s.node.name, s.is_last) for s in found] == [("b", False), ("a", True)]

"""What becomes of words on machines, and of what was lost there, when they start again."""

from __future__ import annotations

from dataclasses import replace

from service.avoidance import MAX_LOSSES, suspects
from service.machines import MAX_AWAITED, fate_of, has_own_name
from service.records import Duty, Loss, NodeMark, NodeView

NOW = 1e9


def node(node_id: str, name: str, *, is_alive: bool = True) -> NodeView:
    return NodeView(node_id=node_id, name=name, is_alive=is_alive, total={"cpus": 2.0}, free={})


def word(node_id: str, name: str, since: float = 1.0) -> NodeMark:
    return NodeMark(node_id=node_id, name=name, duty=Duty.DRAINED, actor="admin", reason="", since=since)


def fate(nodes: list[NodeView], *marks: NodeMark, has_autoscaler: bool = False) -> tuple[dict[str, str], list[str]]:
    """By the ids of gone nodes those that they have now; and whose words are dropped."""
    found = fate_of(nodes, {mark.node_id: mark for mark in marks}, has_autoscaler=has_autoscaler)
    return {old: mark.node_id for old, mark in found.moved.items()}, sorted(mark.node_id for mark in found.dropped)


def test_a_word_waits_for_its_machine_and_goes_on_with_it() -> None:
    others = [node("b1", "b")]
    assert fate([node("a1", "a"), *others], word("a1", "a")) == ({}, [])
    assert fate([node("a1", "a", is_alive=False), *others], word("a1", "a")) == ({}, [])
    assert fate(others, word("a1", "a")) == ({}, [])
    assert fate([node("a1", "a", is_alive=False), node("a2", "a"), *others], word("a1", "a")) == ({"a1": "a2"}, [])


def test_a_word_is_dropped_where_the_machine_cannot_be_known_or_has_a_later_word() -> None:
    back = [node("a2", "a"), node("b1", "b")]
    assert fate(back, word("a1", "")) == ({}, ["a1"])
    assert fate(back, word("a1", "a"), has_autoscaler=True) == ({}, ["a1"])
    assert fate(back, word("a1", "a"), word("a2", "a", since=2.0)) == ({}, ["a1"])
    assert fate(back, word("a0", "a"), word("a1", "a", since=2.0)) == ({"a1": "a2"}, ["a0"])
    assert fate([*back, node("a3", "a")], word("a1", "a")) == ({}, []), "which of the two is it?"
    many = [word(f"x{n}", f"x{n}", since=float(n)) for n in range(MAX_AWAITED + 2)]
    assert fate(back, *many) == ({}, ["x0", "x1"])


def test_a_name_is_a_nodes_own_where_no_other_living_one_has_it() -> None:
    nodes = [node("a1", "a", is_alive=False), node("a2", "a"), node("b1", "b"), node("b2", "b")]
    assert [has_own_name(each, nodes) for each in nodes] == [False, True, False, False]


def test_a_machine_that_starts_again_and_again_is_a_suspect() -> None:
    ids = [f"a{n}" for n in range(MAX_LOSSES)]
    losses = [Loss(job_id=f"j{n}", node_id=i, time=NOW - 10.0, spared_elsewhere=False) for n, i in enumerate(ids)]
    past = [node(node_id, "a", is_alive=False) for node_id in ids]
    (found,) = suspects([*past, node("a9", "a"), node("b", "b")], {}, losses, NOW, 2)
    assert (found.node.node_id, found.num_losses) == ("a9", MAX_LOSSES)
    since = {"a9": replace(word("a9", "a", since=NOW - 5.0), duty=Duty.ACTIVE)}
    assert suspects([*past, node("a9", "a"), node("b", "b")], since, losses, NOW, 2) == []
    assert suspects([*past, node("a9", "a"), node("a8", "a"), node("b", "b")], {}, losses, NOW, 2) == []

"""Which nodes take no workers, and when one has failed too often."""

from __future__ import annotations

from service.avoidance import INCIDENT_S, MAX_LOSSES, WINDOW_S, avoided, suspects, usable
from service.records import Duty, Loss, NodeMark, NodeView

NOW = 1e9


def node(name: str, *, is_alive: bool = True, is_leaving: bool = False) -> NodeView:
    return NodeView(
        node_id=f"id-{name}", name=name, is_alive=is_alive, total={"cpus": 2.0}, free={}, is_leaving=is_leaving
    )


def mark(name: str, duty: Duty, since: float = NOW) -> dict[str, NodeMark]:
    return {f"id-{name}": NodeMark(node_id=f"id-{name}", duty=duty, actor="admin", reason="a new disk", since=since)}


def lost(name: str, *ages_s: float, job: str = "j", spared_elsewhere: bool = False) -> list[Loss]:
    return [
        Loss(job_id=job, node_id=f"id-{name}", time=NOW - age_s, spared_elsewhere=spared_elsewhere)
        for age_s in sorted(ages_s, reverse=True)
    ]


def blamed(*losses: list[Loss], num_jobs: int = 2) -> list[str]:
    """The nodes of three on which these losses cast suspicion."""
    told = sorted((loss for part in losses for loss in part), key=lambda loss: loss.time)
    return [s.node.name for s in suspects([node("a"), node("b"), node("c")], {}, told, NOW, num_jobs)]


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


def test_three_failures_within_the_window_make_a_suspect() -> None:
    nodes = [node("a"), node("b")]
    few, old = lost("a", 10.0, 20.0), lost("a", WINDOW_S + 1)
    assert suspects(nodes, {}, old + few, NOW, 1) == []
    (found,) = suspects(nodes, {}, lost("a", WINDOW_S - 1) + few + lost("b", 1.0, job="k"), NOW, 1)
    assert (found.node.name, found.num_losses, found.is_last) == ("a", MAX_LOSSES, False)


def test_what_one_job_loses_at_once_is_one_failure() -> None:
    assert blamed(lost("a", 10.0, 10.5, 11.0, INCIDENT_S + 5.0), num_jobs=1) == []
    assert blamed(lost("a", 10.0), lost("a", 10.0, job="k"), lost("a", 10.0, job="l")) == ["a"]
    seconds = range(10, 30)  # a job that is lost every second fails a few times, not twenty
    (found,) = suspects([node("a"), node("b")], {}, lost("a", *seconds), NOW, 1)
    assert found.num_losses == 4


def test_one_job_among_others_speaks_against_a_node_only_where_it_does_well_on_others() -> None:
    ages_s = (10.0, 20.0, 30.0)
    assert blamed(lost("a", *ages_s)) == []
    assert blamed(lost("a", *ages_s), num_jobs=1) == ["a"]
    assert blamed(lost("a", *ages_s, spared_elsewhere=True)) == ["a"]
    assert blamed(lost("a", *ages_s[:2]), lost("a", *ages_s[2:], job="k")) == ["a"]


def test_a_job_that_fails_wherever_it_goes_takes_no_second_node_out_of_use() -> None:
    there, here = lost("a", *(WINDOW_S + s for s in (0.0, 10.0, 20.0))), lost("b", 10.0, 20.0, 30.0)
    assert blamed(there, here, num_jobs=1) == []
    assert blamed(there, here, lost("b", 40.0, job="k"), num_jobs=1) == ["b"]


def test_losses_from_before_somebodys_word_are_past() -> None:
    nodes, losses = [node("a"), node("b")], lost("a", 10.0, 20.0, 30.0)
    assert suspects(nodes, mark("a", Duty.ACTIVE, since=NOW - 5.0), losses, NOW, 1) == []
    assert suspects(nodes, mark("a", Duty.QUARANTINED, since=NOW - 60.0), losses, NOW, 1) == []


def test_the_last_usable_node_is_only_told_of() -> None:
    nodes = [node("a"), node("b"), node("c")]
    losses = lost("b", 10.0, 20.0, 30.0, 40.0, job="k") + lost("a", 10.0, 20.0, 30.0)
    found = suspects(nodes, mark("c", Duty.DRAINED), losses, NOW, 1)
    assert [(s.node.name, s.is_last) for s in found] == [("b", False), ("a", True)]
    assert [s.is_last for s in suspects(nodes[:1], {}, lost("a", 10.0, 20.0, 30.0), NOW, 9)] == [True]

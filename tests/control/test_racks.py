"""What a controller tells of its group's racks, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import Desk, build_info
from workers.control.snapshot import Progress, fold
from workers.control.telemetry import Pending
from workers.plan import TimelineKind
from workers.racks import Dispute, Topology, topology_of, unmeasured
from workers.status import Phase, TimelineRow

LABELS = ("a", "b", "b")
"""Of the workers by rank; the second's is wrong."""

FAST, SLOW = 118e6, 6e6
LINKS = [[0.0, FAST, SLOW], [FAST, 0.0, SLOW], [SLOW, SLOW, 0.0]]


def labelled(num: int = 3, **spec: object) -> tuple[Desk, list[str]]:
    """A job that trains on so many labelled nodes."""
    desk = Desk(**spec)  # type: ignore[arg-type]  # fields by name
    ids = desk.started(num)
    for number, i in enumerate(ids):
        desk.statuses[i] = replace(desk.statuses[i], build=built(number))
    return desk, ids


def built(number: int) -> object:
    return replace(build_info(), node_id=f"n{number}", rack=LABELS[number])


def told(desk: Desk) -> list[TimelineRow]:
    return [row for row in desk.notes() if row.actor == "racks"]


def surveyed(desk: Desk, ids: list[str], topology: Topology) -> list[TimelineRow]:
    """The rows of the turn in which workers tell of their racks."""
    for i in ids:
        desk.say(i, Phase.COMPUTE, topology=topology)
    desk.turn()
    return told(desk)


def test_a_plan_names_the_racks_of_its_members_by_their_labels() -> None:
    desk = Desk(want=3)
    desk.turn()
    desk.turn()
    for number, i in enumerate(f"1.{n}" for n in (1, 2, 3)):
        desk.say(i, Phase.READY, build=built(number))
    desk.turn()
    assert desk.plan.labels == LABELS


def test_labels_that_links_contradict_are_told_once_a_membership_with_both_views() -> None:
    desk, ids = labelled()
    [row] = surveyed(desk, ids, topology_of(LINKS, labels=LABELS))
    assert (row.kind, row.before["labels"], row.after["racks"]) == (TimelineKind.EXCHANGE, list(LABELS), [0, 0, 1])
    assert row.reason.startswith(
        "labels and links differ: worker 1.1 on node n0 and worker 1.2 on node n1 have racks 'a' and 'b' by label, "
        "but their link (944 Mbit/s) is one inside a rack; worker 1.2 on node n1 and worker 1.3 on node n2 both have "
        "the rack 'b' by label, but their link (48 Mbit/s) is one between racks; racks of ranks 0, 1 | 2"
    )
    assert "correct the label concertina.io/rack" in row.reason
    assert surveyed(desk, ids, topology_of(LINKS, labels=LABELS)) == []
    desk.turn(lost={ids[1]: "gone"})
    for _ in range(4):
        desk.turn()
    assert told(desk) == []


def test_another_membership_tells_of_its_own_racks() -> None:
    desk, ids = labelled()
    assert len(surveyed(desk, ids, topology_of(LINKS, labels=LABELS))) == 1
    desk.state = replace(desk.state, plan=replace(desk.plan, generation=desk.plan.generation + 1))
    for i in ids:
        desk.say(i, Phase.COMPUTE, plan=desk.plan, generation=desk.plan.generation, topology=None)
    desk.turn()
    assert told(desk) == []
    [row] = surveyed(desk, ids, topology_of(LINKS, labels=LABELS))
    assert row.key == f"racks/{desk.plan.generation}"


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        (unmeasured(3), "Links were not all measured within a second, and not all nodes have the label"),
        (unmeasured(3, LABELS), "Workers sit in 2 racks by the label concertina.io/rack of their nodes; links were"),
        (topology_of(LINKS), None),
        (topology_of(LINKS, labels=("x", "x", "y")), None),
    ],
    ids=["no time, no labels", "no time", "no labels", "labels that are right"],
)
def test_links_that_took_too_long_are_told_and_what_is_in_order_is_not(topology: Topology, reason: str | None) -> None:
    desk, ids = labelled()
    rows = surveyed(desk, ids, topology)
    assert [row.reason[: len(reason or "")] for row in rows] == ([] if reason is None else [reason])


def test_of_a_pair_labels_are_taken_without_a_word() -> None:
    desk, ids = labelled(2)
    assert surveyed(desk, ids, unmeasured(2, ("a", "b"))) == []
    assert len(surveyed(*labelled(2), unmeasured(2))) == 1


@pytest.mark.parametrize(
    ("topology", "begins", "used"),
    [
        (topology_of([[SLOW] * 3] * 3), "each worker counts as a rack of its own, so all links", "int4"),
        (topology_of([[FAST] * 3] * 3), "all workers count as one rack, so no link is between racks", "topk"),
        (unmeasured(3), "Links were not all measured within a second, and not all", "topk"),
    ],
    ids=["a rack each", "one rack", "no time, no labels"],
)
def test_what_is_exchanged_where_an_exchange_over_racks_has_one_level_is_told(
    topology: Topology, begins: str, used: str
) -> None:
    desk, ids = labelled(communication={"scheme": "topk", "fraction": 0.01, "across": "int4"})
    [row] = surveyed(desk, ids, topology)
    assert row.reason.startswith(begins)
    assert row.reason.endswith(f"gradients travel as {used} instead of topk across int4")
    assert row.after["communication"] == used
    assert surveyed(desk, ids, topology) == []


def test_an_exchange_over_racks_that_has_both_levels_is_what_its_name_says() -> None:
    assert surveyed(*labelled(communication={"scheme": "topk", "across": "int4"}), topology_of(LINKS)) == []


def test_whoever_adopts_a_group_does_not_tell_again_what_it_had_told() -> None:
    old, ids = labelled()
    surveyed(old, ids, topology_of(LINKS, labels=LABELS))
    desk = Desk(term=2, want=3)
    desk.listed, desk.statuses = tuple(ids), {i: replace(s, term=2) for i, s in old.statuses.items()}
    for _ in range(3):
        desk.turn()
        assert told(desk) == []
    assert desk.plan.worker_ids == tuple(ids)


def test_a_snapshot_has_what_the_group_in_force_told_and_each_workers_label() -> None:
    desk, ids = labelled()
    topology = topology_of(LINKS, labels=LABELS)
    surveyed(desk, ids, topology)
    found = fold(desk.state, desk.direction, Pending(), Progress(), None)
    assert found.topology == topology
    assert found.topology.disputes[0] == Dispute(ranks=(0, 1), is_one_label=False, bytes_per_s=FAST)
    assert [view.rack_label for view in found.workers] == list(LABELS)


def test_the_snapshot_of_a_job_whose_workers_have_left_still_tells_of_its_last_groups_racks() -> None:
    desk, ids = labelled()
    surveyed(desk, ids, topology_of(LINKS, labels=LABELS))
    for i in ids:
        desk.say(i, Phase.DONE, generation=None)
    desk.turn()
    assert fold(desk.state, desk.direction, Pending(), Progress(), None).topology == topology_of(LINKS, labels=LABELS)
    desk.state = replace(desk.state, plan=replace(desk.plan, generation=desk.plan.generation + 1))
    assert fold(desk.state, desk.direction, Pending(), Progress(), None).topology == topology_of(LINKS, labels=LABELS)
    for i in ids:
        desk.say(i, Phase.RENDEZVOUS, plan=desk.plan, generation=desk.plan.generation, topology=None)
    desk.turn()
    assert fold(desk.state, desk.direction, Pending(), Progress(), None).topology is None

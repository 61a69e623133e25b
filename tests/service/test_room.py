"""What a worker takes where, above all one that has a GPU, or CPUs instead on a node that has no GPUs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from service.queue import Running, Waiting, admit, explain, free_at, held_by_others, offers
from service.records import NodeView
from service.room import empty, fit, need_of
from tests.service.test_queue import node, placed
from workers.control.shapes import Shape, choose, either
from workers.spec_parts import Resources

EITHER = Resources(cpus=1, gpus=1, cpus_instead=4)
NOWHERE = frozenset[str]()


def waits(resources: Resources, min: int = 1, max: int = 64) -> Waiting:
    return Waiting(job_id="w", need=need_of(resources), min=min, max=max)


def test_a_worker_takes_its_gpu_or_its_cpus_by_what_its_node_has_in_all() -> None:
    need = need_of(EITHER.model_copy(update={"memory_bytes": 2**30}))
    with_gpus, in_use, without = node("g", 8, gpus=2), replace(node("u", 8, gpus=2), free={}), node("c", 8)
    on_gpu = {"cpus": 1, "gpus": 1, "memory_bytes": 2.0**30}
    assert [need.on(each) for each in (with_gpus, in_use)] == [on_gpu, on_gpu]
    assert need.on(without) == {"cpus": 4, "gpus": 0, "memory_bytes": 2.0**30}
    assert need.in_words == "1 CPU, 1 GPU, 1 GiB of memory (on nodes without GPUs 4 CPU, 1 GiB of memory)"
    only = need_of(Resources(gpus=1))
    assert only.on(without) == only.on(with_gpus)


def test_cpus_of_a_node_that_has_gpus_are_no_room_for_a_worker_without_one() -> None:
    busy = replace(node("g", 16, gpus=1), free={"cpus": 16.0, "gpus": 0.0, "memory_bytes": 2.0**33})
    assert admit([waits(EITHER)], [], [busy]) == []
    assert [grant.num_workers for grant in admit([waits(EITHER)], [], [busy, node("c", 9)])] == [2]


def test_what_is_granted_and_not_there_yet_takes_a_gpu_first_wherever_that_node_stands() -> None:
    nodes = [node("c", 4), node("g", 1, gpus=1)]
    coming = replace(placed("a", 1), need=need_of(EITHER))
    assert [room.left["cpus"] for room in free_at([coming], nodes, {"a": 1})] == [4.0, 0.0]


def test_what_others_hold_is_told_apart_from_what_a_worker_has_on_its_kind_of_node() -> None:
    sits = replace(placed("a", 2, on={"c": 1, "g": 1}), need=need_of(EITHER))
    taken = {"cpus": 7.0, "gpus": 1.0, "memory_bytes": 2.0**33}
    view = [node("c", 8, free=3), replace(node("g", 8, gpus=2), free=taken)]
    found = held_by_others({}, [sits], view)
    assert [(found[name]["cpus"], found[name]["gpus"]) for name in "cg"] == [(1.0, 0.0), (0.0, 0.0)]


def test_a_job_that_never_fits_is_told_both_of_its_shapes() -> None:
    told = explain(waits(EITHER, min=4), [node("g", 8, gpus=1), node("c", 8)])
    assert told is not None
    assert "of at least 4 workers with 1 CPU, 1 GPU (on nodes without GPUs 4 CPU) each, 3 fit." in told.summary


RESOURCES = st.builds(
    Resources,
    cpus=st.sampled_from([0.5, 1.0, 2.0]),
    gpus=st.sampled_from([0.25, 0.3, 0.4, 1.0]),
    cpus_instead=st.none() | st.sampled_from([1.0, 3.0]),
)
NODES = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0, 0, 1, 2])), min_size=1, max_size=4).map(
    lambda sizes: [node(f"{number}", cpus, gpus=gpus) for number, (cpus, gpus) in enumerate(sizes)]
)


@settings(max_examples=150, deadline=None)
@given(RESOURCES, NODES, st.randoms(use_true_random=False))
def test_hands_find_room_for_as_many_as_are_granted_and_for_no_more(
    resources: Resources, nodes: list[NodeView], chance: Random
) -> None:
    grants = admit([waits(resources)], [], nodes)
    places, left = seated(resources, nodes, chance)
    assert sum(grant.num_workers for grant in grants) == len(places)
    sits = Running(
        job_id="w", need=need_of(resources), num_workers=len(places), min=1, max=64, num_asked=64, places=places
    )
    # As Ray sees it, and as we alone know it.
    for view in (left, nodes):
        assert offers([sits], view) == {"w": len(places)}
    rooms = free_at([sits], nodes, {"w": len(places)})
    assert [room.left["cpus"] for room in rooms] == [each.free["cpus"] for each in left]
    assert fit(sits.need, empty(nodes), 64) == len(places)


def seated(resources: Resources, nodes: list[NodeView], chance: Random) -> tuple[tuple[str, ...], list[NodeView]]:
    """The nodes of as many workers as hands could place, each on any with room for it, and what is left then."""
    with_gpus = frozenset(each.node_id for each in nodes if each.total["gpus"])
    free = {each.node_id: {"CPU": each.free["cpus"], "GPU": each.free["gpus"]} for each in nodes}
    places: list[str] = []
    while (shape := shape_now(resources, with_gpus, free)) is not None:
        node_id = chance.choice([name for name in free if shape.num_fitting({name: free[name]})])
        free[node_id]["CPU"] -= shape.options["num_cpus"]
        free[node_id]["GPU"] -= shape.options["num_gpus"]
        places.append(node_id)
    left = [
        replace(each, free={**each.free, "cpus": free[each.node_id]["CPU"], "gpus": free[each.node_id]["GPU"]})
        for each in nodes
    ]
    return tuple(places), left


def shape_now(resources: Resources, with_gpus: frozenset[str], free: dict[str, dict[str, float]]) -> Shape | None:
    is_only = resources.cpus_instead is None
    shapes = (Shape(resources, NOWHERE),) if is_only else either(resources, NOWHERE, with_gpus)
    return choose(shapes, free, ())

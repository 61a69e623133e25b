"""Whether a new worker gets a GPU or CPUs instead, and what it then makes of its assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.control.test_controller import KEY, launch
from workers.assignment import Assignment
from workers.control.launch import Launch
from workers.control.names import NODE_ID_LABEL
from workers.control.shapes import Shape, choose, either
from workers.spec_parts import Resources

EITHER = Resources(cpus=1, gpus=1, cpus_instead=4, memory_bytes=2**30)
ON_GPU = {"num_cpus": 1, "num_gpus": 1, "memory": 2**30}
ON_CPUS = {"num_cpus": 4, "num_gpus": 0, "memory": 2**30}


def room(cpus: float, gpus: float = 0.0, memory: float = 2.0**30) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus, "memory": memory}


@pytest.mark.parametrize(
    ("with_gpu", "without", "expected", "left_out"),
    [
        (room(1, 1), room(4), ON_GPU, "n"),
        (room(9, 0), room(4), ON_CPUS, "n,gpu"),
        (room(1, 1, memory=0), room(4), ON_CPUS, "n,gpu"),
        (room(0, 1), room(4, memory=0), None, ""),
        (room(9, 0), room(3), None, ""),
    ],
    ids=["a GPU first", "no GPU left", "no memory beside it", "no memory at all", "no room"],
)
def test_a_worker_gets_a_gpu_where_one_is_free_and_else_cpus_of_a_node_that_has_none(
    with_gpu: dict[str, float], without: dict[str, float], expected: dict[str, float] | None, left_out: str
) -> None:
    shape = chosen({"n": room(64, 8), "gpu": with_gpu, "cpus": without})
    if expected is None:
        assert shape is None
        return
    assert shape is not None
    selector = {NODE_ID_LABEL: f"!in({','.join(sorted(left_out.split(',')))})"}
    assert shape.options == {**expected, "label_selector": selector}


def test_room_that_may_be_gone_to_who_is_coming_is_looked_at_again() -> None:
    beside, two = {"cpus": room(8, memory=2.0**32)}, room(2, 2, memory=2.0**32)
    assert gpus_of(chosen({"gpu": two, **beside}, coming=[EITHER])) == 1
    assert chosen({"gpu": two, **beside}, coming=[EITHER] * 2) is None
    full = {"gpu": room(2, 0), **beside}
    assert gpus_of(chosen(full, coming=[EITHER] * 2)) == 0
    assert gpus_of(chosen(full, coming=[EITHER, EITHER.without_gpu()])) == 0
    assert chosen(full, coming=[EITHER.without_gpu()] * 2) is None


def test_what_was_tried_in_vain_comes_after_the_other() -> None:
    free = {"gpu": room(9, 1), "cpus": room(4)}
    shapes = either(EITHER, frozenset(), frozenset({"gpu"}))
    assert gpus_of(choose(shapes, free, (), EITHER)) == 0
    assert gpus_of(choose(shapes, {**free, "cpus": room(3)}, (), EITHER)) == 1


def test_parts_of_a_gpu_that_no_worker_can_join_are_no_room() -> None:
    shape = Shape(Resources(cpus=1, gpus=0.4, cpus_instead=1), frozenset())
    taken = shape.options["num_gpus"]
    assert [shape.num_fitting({"gpu": room(9, 3 - number * taken)}) for number in (0, 5, 6)] == [6, 1, 0]
    assert shape.is_like({"CPU": 1.0, "GPU": 0.5})
    third = Shape(Resources(gpus=0.3), frozenset())
    assert third.is_like({"CPU": 1.0, "GPU": 0.3333})
    assert not third.is_like({"CPU": 1.0, "GPU": 0.3})


def chosen(free: dict[str, dict[str, float]], coming: Sequence[Resources] = ()) -> Shape | None:
    return choose(either(EITHER, frozenset({"n"}), frozenset({"gpu", "n"})), free, coming)


def gpus_of(shape: Shape | None) -> float | None:
    return None if shape is None else shape.resources.gpus


def test_a_worker_that_may_not_do_without_a_gpu_has_no_room_where_there_is_none() -> None:
    shape = Shape(Resources(gpus=1), frozenset())
    assert shape.options == {"num_cpus": 1, "num_gpus": 1}
    assert not shape.num_fitting({"cpus": room(64)})


def test_a_worker_learns_from_what_it_was_given_that_it_has_no_gpu(tmp_path: Path) -> None:
    assignment = assigned(tmp_path, EITHER)
    assert assignment.as_placed({"CPU": 1.0, "GPU": 1.0}) == assignment
    found = assignment.as_placed({"CPU": 4.0})
    assert found.spec.resources == Resources(cpus=4, gpus=0, cpus_instead=4, memory_bytes=2**30)
    assert found.spec.batch == assignment.spec.batch
    only = assigned(tmp_path, Resources(gpus=1))
    assert only.as_placed({"CPU": 1.0}) == only


def assigned(folder: Path, resources: Resources) -> Assignment:
    return launched(folder, resources).assignment(KEY, "1.1")


def launched(folder: Path, resources: Resources) -> Launch:
    given = launch(folder)
    return replace(given, spec=given.spec.model_copy(update={"resources": resources}))

"""Links measured when a group begins: all pairs, the same numbers on all ranks, within a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

import pytest

from tests.training.fake_store import FakeStore
from tests.training.test_world import WAIT_S, in_threads, joined
from workers.racks import FoundBy, Topology
from workers.training import links
from workers.training.world import World, await_released

T = TypeVar("T")


def by_each(size: int, call: Callable[[World], T]) -> list[T]:
    """What a call gives to every rank of a world."""
    store = FakeStore()

    def work(rank: int) -> T:
        world = joined(store, rank, size, "1/1")
        try:
            return call(world)
        finally:
            world.leave()

    found = in_threads(size, work)
    await_released(WAIT_S)
    return found


@pytest.mark.parametrize("size", range(1, 9))
def test_all_pairs_meet_once_and_nobody_is_twice_in_a_round(size: int) -> None:
    rounds = links.rounds_of_pairs(size)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(size), 2))
    for pairs in rounds:
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_hold_the_same_speed_of_every_link(size: int) -> None:
    first, *others = by_each(size, links.measure)
    assert first is not None
    assert all(other == first for other in others)
    for a, b in combinations(range(size), 2):
        assert first[a][b] == first[b][a] > 0.0


def test_one_rank_alone_is_in_one_rack_whatever_its_label() -> None:
    assert by_each(1, lambda world: links.survey(world, ("a",))) == [Topology(racks=(0,))]


def test_all_ranks_give_up_together_where_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BUDGET_S", 0.0)
    assert by_each(3, links.measure) == [None] * 3


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_hold_the_same_latency_of_every_link(size: int) -> None:
    first, *others = by_each(size, lambda world: (links.measure(world), world.latencies_s())[1])
    assert first is not None
    assert all(other == first for other in others)
    assert all(0.0 < first[a][b] == first[b][a] < links.BUDGET_S for a, b in combinations(range(size), 2))


def surveyed(size: int, labels: Sequence[str]) -> Topology:
    """What all ranks alike found."""
    first, *others = by_each(size, lambda world: links.survey(world, labels))
    assert all(other == first for other in others)
    return first


def test_links_decide_and_labels_stand_in_for_them() -> None:
    assert (told := surveyed(3, ["a", "b", "b"])).found_by is FoundBy.LINKS
    assert told.racks == (0, 0, 0)  # of one machine
    assert told.inside_latency_s is not None
    told = surveyed(2, ["a", "b"])
    assert (told.racks, told.found_by) == ((0, 1), FoundBy.LABELS)
    assert surveyed(2, ["a", ""]).found_by is FoundBy.LINKS


@pytest.mark.parametrize(("labels", "racks"), [(["a", "b", "b"], (0, 1, 1)), (["a", "", "b"], (0, 0, 0))])
def test_labels_hold_where_measuring_took_too_long(
    labels: list[str], racks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(links, "BUDGET_S", 0.0)
    assert surveyed(3, labels).racks == racks
    assert capfd.readouterr().out.count("were not all measured within 0 s") == 1


class Wire:
    """A world of two, seen from the second, over a link that takes so many seconds for each message."""

    rank, size = 1, 2

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: list[float]) -> None:
        self.sent: list[int] = []
        self._told = iter(took_s)
        monkeypatch.setattr(links, "_send", self.send)

    def send(self, world: World, pairs: object, num_bytes: int) -> float:
        self.sent.append(num_bytes)
        return next(self._told)

    def gather(self, values: list[int]) -> list[list[int]]:
        return [[0, 0], values]


@pytest.mark.parametrize(
    ("took_s", "num_large", "mbytes_per_s"),
    [
        ([0.02, 0.01], 0, 6.5536),  # slow twice over
        ([0.02, 0.001, 0.01, 0.02], 2, 104.8576),  # disturbed once, and the better of the large
        ([0.001, 0.2], 1, 5.24288),  # a burst let the small one through
        ([0.001, 0.001], 1, 1048.576),
        ([0.0001], 0, 655.36),
    ],
)
def test_a_link_gets_as_many_messages_as_it_takes_to_know_it(
    monkeypatch: pytest.MonkeyPatch, took_s: list[float], num_large: int, mbytes_per_s: float
) -> None:
    wire = Wire(monkeypatch, took_s)
    speeds = links.measure(wire)  # type: ignore[arg-type]  # the part of World it uses
    assert speeds is not None
    assert speeds[0][1] == pytest.approx(mbytes_per_s * 1e6)
    assert len(wire.sent) == len(took_s)
    assert wire.sent.count(links.LARGE_BYTES) == num_large

"""Links measured when a group begins: all pairs, the same numbers on all ranks, within a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

import pytest

from tests.training.fake_store import FakeStore
from tests.training.test_world import WAIT_S, in_threads, joined
from workers.racks import FoundBy, Topology, topology_of
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


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are measured to the end: on a machine that stands still for a second there is nothing else to see."""
    monkeypatch.setattr(links, "BUDGET_S", WAIT_S)


@pytest.mark.usefixtures("unhurried")
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


@pytest.mark.usefixtures("unhurried")
def test_links_decide_and_labels_stand_in_for_them() -> None:
    assert (told := surveyed(3, ["a", "b", "b"])).found_by is FoundBy.LINKS
    assert told.racks == (0, 0, 0)  # of one machine
    assert told.inside_latency_s is not None
    told = surveyed(2, ["a", "b"])
    assert (told.racks, told.found_by) == ((0, 1), FoundBy.LABELS)
    assert surveyed(2, ["a", ""]).found_by is FoundBy.LINKS


@pytest.mark.usefixtures("unhurried")
def test_of_ranks_on_one_machine_one_link_is_measured_and_counts_for_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert len({*by_each(3, World.machines)[0]}) == 1
    surveyed(3, ["", "", ""])
    rates = capfd.readouterr().out.partition("between ranks: ")[2].split(", ")
    assert [rate.split()[0] for rate in rates] == ["0-1", "0-2", "1-2"]
    assert len({rate.split()[1] for rate in rates}) == 1


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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: list[float], spent_s: float = 0.0) -> None:
        self.sent: list[int] = []
        self._spent_s = spent_s
        self._told = iter(took_s)
        monkeypatch.setattr(links, "_send", self.send)

    def send(self, world: World, pairs: object, num_bytes: int) -> float:
        self.sent.append(num_bytes)
        return next(self._told)

    def gather(self, values: list[int]) -> list[list[int]]:
        return [[0, round(1e9 * self._spent_s)], values]

    def latencies_s(self) -> None:
        return None


@pytest.mark.parametrize(
    ("took_s", "num_large", "mbytes_per_s"),
    [
        ([0.011, 0.01], 0, 6.5536),  # slow twice over
        ([0.029, 0.015, 0.0001], 0, 655.36),  # disturbed twice over
        ([0.03, 0.01, 0.03, 0.01], 0, 6.5536),  # once, and once more
        ([0.08, 0.06, 0.04, 0.03, 0.02, 0.05, 0.02, 0.02], 0, 3.2768),
        ([0.64, 0.32, 0.16, 0.64, 0.08, 0.64, 0.04, 0.64, 0.02, 0.64], 0, 3.2768),  # as often as there is
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


def test_a_doubtful_link_is_not_measured_anew_where_half_of_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = Wire(monkeypatch, [0.03, 0.02], spent_s=0.6 * links.BUDGET_S)
    speeds = links.measure(wire)  # type: ignore[arg-type]  # the part of World it uses
    assert speeds is not None
    assert speeds[0][1] == pytest.approx(links.SMALL_BYTES / 0.02)


@dataclass
class Simulated:
    """Rank 0's view of ranks in racks whose links inside have one speed, and whose uplinks share another.

    A message waits for its receiver's word, and then goes in flights of which each is twice the one before, as TCP
    begins. Those that cross at once share their racks' uplinks.
    """

    racks: Sequence[int]
    inside_bytes_per_s: float
    across_bytes_per_s: float
    latency_s: float = 1e-4
    now_s: float = 0.0
    num_sent: int = 0
    flights: dict[tuple[int, int], float] = field(default_factory=dict)
    took: dict[int, float] = field(default_factory=dict)
    rank: int = 0

    @property
    def size(self) -> int:
        return len(self.racks)

    def gather(self, values: list[int]) -> list[list[int]]:
        self.now_s += 2 * self.latency_s + 2e-4
        return [[round(1e9 * self.took.get(rank, 0.0)), values[-1]] for rank in range(self.size)]

    def latencies_s(self) -> list[list[float]]:
        return [[self._latency_s(a, b) for b in range(self.size)] for a in range(self.size)]

    def send(self, world: World, pairs: Sequence[tuple[int, int]], num_bytes: int) -> float:
        ends = Counter(self.racks[rank] for pair in pairs for rank in pair if self._crosses(pair))
        self.num_sent += len(pairs)
        self.took = {b: self._took_s((a, b), num_bytes, max(ends[self.racks[r]] for r in (a, b))) for a, b in pairs}
        self.now_s += max(self.took.values())
        return 0.0

    def _crosses(self, pair: tuple[int, int]) -> bool:
        return self.racks[pair[0]] != self.racks[pair[1]]

    def _latency_s(self, a: int, b: int) -> float:
        return 1e-4 if self.racks[a] == self.racks[b] else self.latency_s

    def _took_s(self, pair: tuple[int, int], num_bytes: int, crossing: int) -> float:
        trip_s = 2 * self._latency_s(*pair)
        speed = self.across_bytes_per_s / crossing if self._crosses(pair) else self.inside_bytes_per_s
        took_s, left, flight = trip_s + 3e-4, float(num_bytes), self.flights.get(pair, 14_600.0)
        while left > flight:
            took_s, left, flight = took_s + max(trip_s, flight / speed), left - flight, 2 * flight
        self.flights[pair] = flight
        return took_s + left / speed


def simulated(monkeypatch: pytest.MonkeyPatch, net: Simulated, machines: Sequence[int] = ()) -> Topology | None:
    """What a group finds there; None where it took too long."""
    monkeypatch.setattr(links, "_send", net.send)
    monkeypatch.setattr(links.time, "perf_counter", lambda: net.now_s)
    speeds = links.measure(net, machines)  # type: ignore[arg-type]  # the part of World it uses
    return None if speeds is None else topology_of(speeds)


EACH = {
    "two of eight": [n // 8 for n in range(16)],
    "two of eight in turns": [n % 2 for n in range(16)],
    "three of five": [n // 5 for n in range(15)],
    "twelve and one": [0] * 12 + [1],
    "two of two": [0, 0, 1, 1],
    "two of sixteen": [n // 16 for n in range(32)],
}


@pytest.mark.parametrize("racks", EACH.values(), ids=EACH.keys())
@pytest.mark.parametrize("is_alone", [True, False], ids=["a machine each", "eight on a machine"])
def test_racks_behind_slow_uplinks_are_found_in_time_however_many_ranks_there_are(
    racks: list[int], is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 50 Mbit, where 64 KiB of each pair that crosses would take longer than there is."""
    machines = [] if is_alone else [rack * len(racks) + n // 8 for n, rack in enumerate(racks)]
    net = Simulated(racks=racks, inside_bytes_per_s=118e6, across_bytes_per_s=6.25e6)
    found = simulated(monkeypatch, net, machines)
    assert found is not None
    assert (found.racks, found.found_by) == (tuple(racks), FoundBy.LINKS)
    assert net.now_s < links.BUDGET_S


def test_more_machines_than_can_be_told_apart_in_time_are_left_to_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    racks = [n // 8 for n in range(64)]
    net = Simulated(racks=racks, inside_bytes_per_s=118e6, across_bytes_per_s=6.25e6)
    assert simulated(monkeypatch, net) is None
    assert net.now_s < 1.2 * links.BUDGET_S


def test_ranks_of_one_machine_cost_what_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def num_sent(a_machine: int) -> int:
        racks = [n // (2 * a_machine) for n in range(4 * a_machine)]
        net = Simulated(racks=racks, inside_bytes_per_s=118e6, across_bytes_per_s=6.25e6)
        assert simulated(monkeypatch, net, [n // a_machine for n in range(4 * a_machine)]) is not None
        return net.num_sent

    assert num_sent(16) == num_sent(2)


@pytest.mark.parametrize("latency_s", [1e-4, 5e-3, 25e-3, 50e-3])
@pytest.mark.parametrize("mbytes_per_s", [118.0, 25.0])
def test_a_far_link_is_not_taken_for_a_slow_one(
    latency_s: float, mbytes_per_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Simulated(racks=[0, 0, 1], inside_bytes_per_s=118e6, across_bytes_per_s=1e6 * mbytes_per_s)
    net.latency_s = latency_s
    found = simulated(monkeypatch, net)
    assert found is not None
    told = found.across_bytes_per_s or found.inside_bytes_per_s
    assert found.racks == ((0, 0, 0) if mbytes_per_s == 118.0 else (0, 0, 1))
    assert told is not None
    assert told == pytest.approx(1e6 * mbytes_per_s, rel=0.4)


@pytest.mark.parametrize("latency_s", [1e-4, 5e-3, 25e-3])
def test_a_far_link_that_is_slow_is_still_found_to_be(latency_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Simulated(racks=[0, 0, 1], inside_bytes_per_s=118e6, across_bytes_per_s=5e6, latency_s=latency_s)
    found = simulated(monkeypatch, net)
    assert found is not None
    assert found.racks == (0, 0, 1)
    assert found.across_bytes_per_s == pytest.approx(5e6, rel=0.4)

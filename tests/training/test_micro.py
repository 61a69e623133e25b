"""The micro-batch that fits and is the fastest: the search by itself."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from workers.measures import Compared
from workers.training.micro import FILL, Choice, MicroSize, Room
from workers.training.micro_tuning import MicroTuning, least_size

MIB = 2**20
BASE = 100 * MIB
NO_LIMIT = Room()
CPU = torch.device("cpu")

Cost = Callable[[int], float]


def settle(
    sizes: MicroSize, part: int, seconds: Cost, held: Cost, room: Room = NO_LIMIT, *, tells_passes: bool = False
) -> Choice:
    """Rounds of ``part`` samples until a size is settled on; ``seconds`` and ``held`` are of one forward pass."""
    for _ in range(100):
        size = sizes.begin(part, lambda: BASE)
        assert 1 <= size <= part
        assert held(size) <= (room.limit_bytes or held(size)), "a size was tried that does not fit"
        warm_s = seconds(size) / size if tells_passes and size < part else None
        choice = sizes.measured(size, seconds(size) / size, round(held(size)), room, warm_s)
        if choice is not None:
            assert not sizes.is_trying
            assert sizes.within(part) == choice.size
            return choice
    raise AssertionError("no size was settled on")


def held(size: int) -> float:
    return BASE + size * MIB


@given(
    part=st.integers(16, 5000),
    overhead=st.floats(1e-5, 1e-2),
    cache=st.integers(2, 4096),
    slower=st.floats(1.2, 3.0),
    seed=st.integers(0, 99),
    tells_passes=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_the_size_found_is_nearly_the_fastest_of_all_in_spite_of_noise(
    part: int, overhead: float, cache: int, slower: float, seed: int, tells_passes: bool
) -> None:
    noise = random.Random(seed)

    def plain(size: int) -> float:
        """A fixed cost, and a cost a sample that is higher where a pass leaves the cache."""
        return overhead + 1e-4 * (size if size <= cache else cache + (size - cache) * slower)

    room = Room(limit_bytes=2**40, is_shared=True)

    def noisy(size: int) -> float:
        return plain(size) * (1 + abs(noise.gauss(0, 0.02)))

    choice = settle(MicroSize(None), part, noisy, lambda s: BASE, room, tells_passes=tells_passes)
    best = min(plain(s) / s for s in (-(-part // 2**i) for i in range(part.bit_length())))
    assert plain(choice.size) / choice.size <= 1.12 * best


@pytest.mark.parametrize("hit", [32, 64, 128])
def test_one_round_that_the_machine_held_up_does_not_rule_out_a_size(hit: int) -> None:
    num_rounds = dict.fromkeys((8, 16, 32, 64, 128), 0)

    def seconds(size: int) -> float:
        """As small passes of a GPU: nearly the same whatever their size. The first round of a size is never counted."""
        num_rounds[size] += 1
        return (0.01 + 1e-6 * size) * (4.0 if size == hit and num_rounds[size] == 2 else 1.0)

    assert settle(MicroSize(None), 128, seconds, lambda s: BASE).size == 128


def test_the_largest_size_that_fits_is_taken_where_only_memory_bounds_it() -> None:
    room = Room(limit_bytes=400 * MIB)
    sizes = MicroSize(None)
    choice = settle(sizes, 1024, lambda s: 1e-3 + 1e-6 * s, held, room)
    assert choice.size == 256
    assert held(256) <= FILL * 400 * MIB < held(512)
    assert "512 would not fit" in choice.reason
    assert "the worker holds about 356 MiB" in choice.reason
    assert sorted(choice.seconds) == [8, 16, 128, 256]


def test_times_are_told_in_the_unit_that_they_need_and_one_sample_as_one() -> None:
    choice = settle(MicroSize(None), 64, lambda s: 5e-4 if s == 1 else 0.0125 * s, lambda s: BASE)
    assert choice.size == 1
    assert choice.reason.startswith(
        "1 sample a forward pass is the fastest of those tried, a sample took 1: 500 µs, 2: 12.5 ms, 4: 12.5 ms"
    )


def test_a_size_that_is_about_as_fast_as_a_larger_one_is_not_told_to_be_faster() -> None:
    choice = settle(MicroSize(None), 64, lambda s: 1e-3 * s + 5e-5, lambda s: BASE)
    assert choice.seconds[8] > choice.seconds[64]
    assert choice.reason.startswith("8 samples a forward pass are within 1% of the fastest of those tried")


def test_what_trying_took_are_the_seconds_by_which_its_rounds_were_longer() -> None:
    rounds: list[float] = []

    def seconds(size: int) -> float:
        return 1e-3 + 1e-6 * size * size

    def told(size: int) -> float:
        rounds.append(-(-256 // size) * seconds(size))
        return seconds(size)

    sizes = MicroSize(None)
    while (choice := sizes.measured(size := sizes.begin(256, lambda: BASE), told(size) / size, BASE, NO_LIMIT)) is None:
        assert len(rounds) < 100
    assert choice.cost_s == pytest.approx(sum(rounds) - len(rounds) * 256 / choice.size * seconds(choice.size))
    assert choice.cost_s > rounds[0] / 2


@pytest.mark.parametrize(("limit", "then"), [(9000, 128), (300, 8)])
def test_after_a_first_round_that_took_next_to_no_memory_a_much_larger_size_is_tried(limit: int, then: int) -> None:
    sizes, room = MicroSize(None), Room(limit_bytes=limit * MIB, is_shared=True)
    assert sizes.begin(1024, lambda: BASE) == 8
    sizes.measured(8, 1e-3, round(held(8)), room, warm_s=1e-4)
    assert sizes.within(1024) == then


@given(part=st.integers(16, 2048), sample=st.integers(1, 64), kept=st.integers(0, 100), limit=st.integers(300, 3000))
@settings(max_examples=200, deadline=None)
def test_no_size_is_tried_that_does_not_fit_and_what_is_found_stays(
    part: int, sample: int, kept: int, limit: int
) -> None:
    """``kept`` MiB are what the optimizer holds from its first step on, which the very first round does not show."""
    sizes, room, num_rounds = MicroSize(None), Room(limit_bytes=BASE + limit * MIB, is_shared=True), 0
    first = sizes.begin(part, lambda: BASE)
    choice = None
    while choice is None:
        size = sizes.begin(part, lambda: BASE)
        held_bytes = BASE + (size * sample + kept * (num_rounds > 0)) * MIB
        assert size <= first or held_bytes <= BASE + limit * MIB
        seconds = (1e-3 + 1e-4 * size) / size
        choice = sizes.measured(size, seconds, held_bytes, room, seconds if size < part else None)
        num_rounds += 1
    if first * sample + kept <= FILL * limit:
        assert sizes.watch(lambda: room) is None
        assert sizes.begin(part, lambda: BASE) == choice.size


def test_what_the_first_passes_take_keeps_larger_ones_from_what_is_no_longer_there() -> None:
    sizes, room = MicroSize(None), Room(limit_bytes=250 * MIB)
    tried = set()
    for _ in range(20):
        size = sizes.begin(1024, lambda: BASE)
        tried.add(size)
        sizes.measured(size, 1e-3 / size, BASE + 40 * size * MIB, room, warm_s=1e-3 / size)
    assert max(tried) == 8


@pytest.mark.parametrize("first", [1.0, 2.0])
def test_smaller_sizes_are_looked_at_after_a_jump_that_did_not_pay(first: float) -> None:
    cost = {8: first, 16: 0.8, 32: 0.7, 64: 1.2}

    def seconds(size: int) -> float:
        return size * cost.get(size, 1.2)

    room = Room(limit_bytes=2**40, is_shared=True)
    assert settle(MicroSize(None), 1024, seconds, lambda s: BASE, room, tells_passes=True).size == 32


def test_a_size_that_only_its_passes_were_measured_of_is_compared_with_the_largest_without_a_range() -> None:
    cost = {8: 0.5, 16: 0.8, 32: 0.7}
    room = Room(limit_bytes=2**40, is_shared=True)
    choice = settle(MicroSize(None), 1024, lambda s: s * cost.get(s, 1.2), lambda s: BASE, room, tells_passes=True)
    assert choice.size == 8
    assert choice.compared == Compared(unit="sample", before_s=1.2, after_s=0.5, errors=None, num_rounds=2)
    assert "(128 by passes alone, without what a round takes besides)" in choice.reason


@pytest.mark.parametrize("slow", [32, 64, 128])
def test_quick_rounds_that_the_machine_held_up_one_after_the_other_do_not_rule_out_a_size(slow: int) -> None:
    num_rounds = dict.fromkeys((8, 16, 32, 64, 128), 0)

    def seconds(size: int) -> float:
        num_rounds[size] += 1
        return (1e-5 + 4e-7 * size) * (4.0 if size == slow and num_rounds[size] <= 7 else 1.0)

    assert settle(MicroSize(None), 128, seconds, lambda s: BASE).size == 128
    assert max(num_rounds.values()) <= 9


@pytest.mark.parametrize(("since_s", "bounds"), [(0.001, (20, 40)), (0.1, (1, 15))])
def test_quick_passes_of_rounds_that_take_long_besides_are_not_measured_more_often(
    since_s: float, bounds: tuple[int, int]
) -> None:
    """What other decisions wait for is the end of the search, and a link may make rounds of any length."""
    sizes, num_rounds, choice = MicroSize(None), 0, None
    while choice is None:
        size = sizes.begin(128, lambda: BASE, since_s)
        choice = sizes.measured(size, 4e-7 + 1e-5 / size, BASE, NO_LIMIT)
        num_rounds += 1
    assert choice.size == 128
    assert bounds[0] <= num_rounds <= bounds[1]


def test_a_round_is_told_how_long_ago_the_one_before_began() -> None:
    told: list[float] = []

    class Sizes(MicroSize):
        def begin(self, num_samples: int, read_bytes: Callable[[], int], since_s: float = 0.0) -> int:
            told.append(since_s)
            return super().begin(num_samples, read_bytes, since_s)

    tuning = MicroTuning(Sizes(None), CPU)
    for _ in range(2):
        tuning.begin(64)
    assert told[0] == math.inf
    assert 0.0 < told[1] < 60.0


def test_what_wins_by_single_passes_has_to_win_by_rounds() -> None:
    """A machine that is held up now and then spares some pass of every round, but no round of many passes."""
    room = Room(limit_bytes=2**40, is_shared=True)
    sizes, cost = MicroSize(None), {8: 1.0, 16: 0.9}
    while True:
        size = sizes.begin(64, lambda: BASE)
        whole_s = 2.0 if size < 64 else 1.2
        choice = sizes.measured(size, whole_s, BASE, room, cost.get(size, 1.1) if size < 64 else None)
        if choice is not None:
            break
    assert choice.size == 64


def test_a_part_of_another_size_is_tried_anew_but_not_the_last_of_a_job() -> None:
    sizes = MicroSize(None)
    settle(sizes, 64, lambda s: 1e-3 + 1e-6 * s, held)
    assert sizes.begin(20, lambda: BASE) == 20
    assert not sizes.is_trying
    assert sizes.begin(64, lambda: BASE) == 64
    for _ in range(2):
        assert not sizes.is_trying
        sizes.begin(512, lambda: BASE)
    assert sizes.is_trying
    sizes.again()


@pytest.mark.parametrize(("part", "passes"), [(512, 16), (34, 12), (20, 10), (8, 8)])
def test_a_part_of_another_size_is_cut_as_before_where_larger_passes_were_clearly_slower(
    part: int, passes: int
) -> None:
    sizes = MicroSize(None)
    assert settle(sizes, 64, lambda s: 1e-3 + 1e-4 * max(s, 3 * s - 32), held).size == 16
    for _ in range(3):
        assert sizes.begin(part, lambda: BASE) == passes
        assert not sizes.is_trying or part < 16  # smaller than what was found: nothing is known of it


def test_among_other_workers_a_part_of_another_size_is_tried_anew() -> None:
    sizes = MicroSize(None)
    settle(sizes, 64, lambda s: 1e-3 + 1e-4 * max(s, 3 * s - 32), held)
    sizes.regrouped()
    for _ in range(2):
        sizes.begin(512, lambda: BASE)
    assert sizes.is_trying


@pytest.mark.parametrize("part", [48, 49, 50, 56, 62, 63, 64])
def test_a_part_that_was_cut_in_many_still_gives_batch_normalisation_enough_samples(part: int) -> None:
    sizes = MicroSize(None, 32)
    assert settle(sizes, 512, lambda s: 1e-3 + 1e-4 * max(s, 3 * s - 64), held).size == 32
    assert sizes.begin(part, lambda: BASE) >= 32


def test_a_part_that_was_computed_whole_and_grows_a_little_is_not_cut_in_two() -> None:
    sizes = MicroSize(None)
    assert settle(sizes, 64, lambda s: 1e-3 + 1e-6 * s, held).size == 64
    for _ in range(2):
        sizes.begin(70, lambda: BASE)
    assert sizes.is_trying
    assert settle(sizes, 70, lambda s: 1e-3 + 1e-6 * s, held).size == 70


def test_a_reading_of_no_time_at_all_is_none() -> None:
    sizes = MicroSize(None)
    readings = iter([0.0, 0.0, 0.0])
    choice = settle(sizes, 64, lambda s: next(readings, 1e-3) if s == 8 else 1e-3, held)
    assert choice.size == 64
    assert min(choice.seconds.values()) > 0.0


def test_nothing_is_tried_where_the_spec_fixes_the_size_or_the_part_is_small() -> None:
    fixed, small = MicroSize(8), MicroSize(None)
    assert [fixed.begin(100, lambda: BASE), small.begin(12, lambda: BASE)] == [8, 12]
    assert not fixed.is_trying
    assert not small.is_trying
    assert not fixed.halve(8)
    assert small.halve(12)
    assert small.within(12) == 6
    assert small.within(13) == 5  # three passes alike instead of 6, 6 and 1
    assert not small.halve(1)


def test_batch_normalisation_is_given_enough_samples_for_its_statistics() -> None:
    assert least_size(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))) == 32
    assert least_size(nn.Linear(1, 1)) == 1
    tried = set()
    sizes = MicroSize(None, least=32)
    settle(sizes, 128, lambda s: tried.add(s) or 1e-4 * s, held)  # type: ignore[func-returns-value]
    assert min(tried) >= 32


@pytest.mark.parametrize("part", [65, 70, 80, 90, 95])
def test_a_part_that_grows_a_little_still_gives_batch_normalisation_enough_samples(part: int) -> None:
    sizes = MicroSize(None, least=32)
    assert settle(sizes, 64, lambda s: 1e-6 * s * s, held).size == 32
    size = sizes.begin(part, lambda: BASE)
    assert 32 <= size <= 48
    assert sizes.halve(size)
    assert sizes.within(part) < 32  # memory comes first

"""Which links are measured: nobody twice at a time, few at a time, and all that it takes to know the racks."""

from __future__ import annotations

from itertools import combinations

import pytest

from workers.training.link_pairs import MOST_PAIRS, Pair, apart, first_rounds, next_rounds, rounds_of_pairs, table


def flat(rounds: list[list[Pair]]) -> list[Pair]:
    return sorted(pair for pairs in rounds for pair in pairs)


@pytest.mark.parametrize("size", range(1, 9))
def test_all_pairs_meet_once_and_nobody_is_twice_in_a_round(size: int) -> None:
    rounds = rounds_of_pairs(size)
    assert flat(rounds) == list(combinations(range(size), 2))
    for pairs in rounds:
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs)


@pytest.mark.parametrize("size", range(2, 9))
def test_of_few_machines_all_meet(size: int) -> None:
    assert flat(first_rounds(range(size))) == list(combinations(range(size), 2))


@pytest.mark.parametrize("size", [9, 16, 17, 33, 64])
def test_of_many_machines_a_part_meets_in_which_each_reaches_each(size: int) -> None:
    pairs = flat(first_rounds(range(size)))
    assert len(pairs) <= max(MOST_PAIRS, size)
    reached = {0}
    for _ in range(size):
        reached |= {rank for pair in pairs if reached & {*pair} for rank in pair}
    assert reached == {*range(size)}


def test_any_pairs_meet_in_rounds_in_which_nobody_is_twice() -> None:
    assert apart([(0, 1), (0, 2), (2, 3), (1, 3)]) == [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]
    assert apart([]) == []


def test_one_rank_of_a_machine_meets_other_machines_and_one_other_of_its_own() -> None:
    assert first_rounds([0, 0, 0, 1, 1, 2]) == [[(0, 1), (3, 4)], *[[pair] for pair in ((3, 5), (0, 5), (0, 3))]]
    assert flat(first_rounds([7, 7, 7])) == [(0, 1)]


def test_the_speed_of_machines_is_that_of_all_their_ranks() -> None:
    found = table({(0, 3): 5.0, (0, 1): 90.0, (3, 4): 70.0}, [0, 0, 0, 1, 1, 2])
    assert found[2] == [90.0, 90.0, 0.0, 5.0, 5.0, 0.0]
    assert found[4] == [5.0, 5.0, 5.0, 90.0, 0.0, 0.0]


def test_two_racks_that_have_no_link_measured_get_one() -> None:
    fast, slow = 100.0, 1.0
    speeds = {(0, 1): fast, (2, 3): fast, (4, 5): fast, (1, 2): slow, (3, 4): slow}
    assert next_rounds(speeds, range(6)) == [[(0, 4)]]
    assert next_rounds({**speeds, (0, 4): fast}, range(6)) == []
    assert next_rounds({**speeds, (0, 4): slow}, range(6)) == []


def test_where_all_links_are_alike_there_is_nothing_more_to_measure() -> None:
    for speed in (1e6, 1e8):
        assert next_rounds(dict.fromkeys(flat(first_rounds(range(16))), speed), range(16)) == []

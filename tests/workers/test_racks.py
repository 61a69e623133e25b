"""Racks from recorded matrices of what links carry, in MB a second."""

from __future__ import annotations

import random

import pytest

from workers.racks import racks_of

TWO_AND_TWO = [
    [0, 12, 4.1, 5.6],
    [97, 0, 3.9, 5.2],
    [4.1, 3.9, 0, 88],
    [5.6, 5.2, 88, 0],
]
THREE_AND_ONE = [
    [0, 96, 99, 5.9],
    [96, 0, 93, 5.8],
    [99, 93, 0, 2.7],
    [5.9, 5.8, 2.7, 0],
]


def found(matrix: list[list[float]]) -> tuple[int, ...]:
    return racks_of([[1e6 * value for value in row] for row in matrix])


def alike(size: int, speed: float) -> list[list[float]]:
    return [[0.0 if a == b else speed for b in range(size)] for a in range(size)]


@pytest.mark.parametrize(
    ("matrix", "racks"),
    [
        (TWO_AND_TWO, (0, 0, 1, 1)),
        (THREE_AND_ONE, (0, 0, 0, 1)),
        ([[0, 90, 30], [90, 0, 31], [30, 31, 0]], (0, 0, 0)),  # not three times as fast: 2.9
        ([[0, 93, 30], [93, 0, 31], [30, 31, 0]], (0, 0, 1)),
        (alike(3, 5.5), (0, 1, 2)),
        (alike(3, 98.0), (0, 0, 0)),
        (alike(4, 900.0), (0, 0, 0, 0)),
        (alike(2, 5.5), (0, 1)),
        ([[0.0]], (0,)),
    ],
    ids=["2+2", "3+1", "below the ratio", "above it", "1+1+1", "a rack of three", "one machine", "a pair", "alone"],
)
def test_recorded_links_make_these_racks(matrix: list[list[float]], racks: tuple[int, ...]) -> None:
    assert found(matrix) == racks


def test_a_rank_s_number_says_nothing_of_its_rack() -> None:
    order = [2, 0, 3, 1]
    assert found([[TWO_AND_TWO[a][b] for b in order] for a in order]) == (0, 1, 0, 1)


def test_of_two_gaps_the_wider_is_that_between_racks() -> None:
    near, metro, far = 120.0, 30.0, 8.0
    two_towns = [
        [0, near, metro, metro, far],
        [near, 0, metro, metro, far],
        [metro, metro, 0, near, far],
        [metro, metro, near, 0, far],
        [far, far, far, far, 0],
    ]
    assert found(two_towns) == (0, 0, 1, 1, 2)


def test_two_on_one_machine_are_no_rack_beside_two_on_another_of_the_same() -> None:
    near, far = 3000.0, 118.0
    assert found([[0, near, far, far], [near, 0, far, far], [far, far, 0, near], [far, far, near, 0]]) == (0, 0, 0, 0)


def test_what_was_disturbed_moves_nobody_as_long_as_one_link_of_each_was_not() -> None:
    rng = random.Random(0)
    for _ in range(200):
        a, b = rng.choice([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)])
        noisy = [[value * rng.uniform(0.8, 1.2) for value in row] for row in THREE_AND_ONE]
        noisy[a][b] = noisy[b][a] = noisy[a][b] / rng.uniform(1.0, 30.0)
        assert found(noisy) == (0, 0, 0, 1)
    one_machine = alike(4, 900.0)
    one_machine[0][3] = one_machine[3][0] = 20.0
    assert found(one_machine) == (0, 0, 0, 0)

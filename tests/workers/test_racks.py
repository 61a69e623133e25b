"""Racks from recorded matrices of what links carry, in MB a second, and from labels."""

from __future__ import annotations

import random

import pytest

from workers.rack_words import dispute_in_words, in_words, one_level_in_words
from workers.racks import Dispute, FoundBy, Topology, complete, racks_of, topology_of, unmeasured

FOUR_AND_FOUR = [[90.0 if a // 4 == b // 4 else 5.0 for b in range(8)] for a in range(8)]
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


def noisy(sizes: tuple[int, ...], inside: float, across: float, rng: random.Random) -> list[list[float]]:
    """Racks of so many ranks; every tenth way of a link is disturbed."""
    racks = [number for number, size in enumerate(sizes) for _ in range(size)]
    return [
        [
            (inside if one == other else across) * rng.lognormvariate(0.0, 0.15) * (0.5 if rng.random() < 0.1 else 1.0)
            for other in racks
        ]
        for one in racks
    ]


@pytest.mark.parametrize(
    ("sizes", "racks"),
    [((2, 2), (0, 0, 1, 1)), ((3, 3), (0, 0, 0, 1, 1, 1)), ((4, 4), (0, 0, 0, 0, 1, 1, 1, 1)), ((6,), (0,) * 6)],
    ids=str,
)
def test_racks_are_found_where_noise_leaves_no_gap_between_links(
    sizes: tuple[int, ...], racks: tuple[int, ...]
) -> None:
    """Inside is four times as fast; a gap alone tells that in seven draws of ten of 2+2, in one of twenty of 4+4."""
    rng = random.Random(0)
    drawn = [found(noisy(sizes, 100.0, 25.0, rng)) for _ in range(200)]
    assert drawn.count(racks) >= 195


def labelled(matrix: list[list[float]], labels: str, latency_s: float = 2e-4) -> Topology:
    """As links and the labels, a letter a rank, have it."""
    speeds = [[1e6 * value for value in row] for row in matrix]
    return topology_of(speeds, [[latency_s] * len(matrix)] * len(matrix), tuple(labels))


@pytest.mark.parametrize(
    ("matrix", "labels", "disputed"),
    [
        (TWO_AND_TWO, "aabb", []),
        (TWO_AND_TWO, "bbaa", []),
        (TWO_AND_TWO, "aaab", [(0, 2, True), (2, 3, False)]),
        (TWO_AND_TWO, "abcd", [(0, 1, False), (2, 3, False)]),
        (TWO_AND_TWO, "aaaa", [(0, 2, True)]),
        (alike(4, 98.0), "aabb", []),  # a network that is as fast between racks
        (alike(3, 5.5), "aab", []),  # one that is as slow everywhere
        (FOUR_AND_FOUR, "abcdefgh", [(0, 1, False), (0, 2, False), (0, 3, False), (1, 2, False)]),
        (TWO_AND_TWO, "", []),
    ],
)
def test_labels_are_disputed_where_links_tell_racks_otherwise(
    matrix: list[list[float]], labels: str, disputed: list[tuple[int, int, bool]]
) -> None:
    told = labelled(matrix, labels)
    assert [(*one.ranks, one.is_one_label) for one in told.disputes] == disputed
    assert (told.racks, told.found_by) == (found(matrix), FoundBy.LINKS)


def test_a_dispute_tells_its_link_in_words() -> None:
    told = labelled(TWO_AND_TWO, "aaab")
    first, second = told.disputes
    assert first == Dispute(ranks=(0, 2), is_one_label=True, bytes_per_s=1e6 * 4.1, latency_s=2e-4)
    name = "rank {}".format
    assert dispute_in_words(first, told.labels, name) == (
        "rank 0 and rank 2 both have the rack 'a' by label, but their link (33 Mbit/s and 0.2 ms) is one between racks"
    )
    assert dispute_in_words(second, told.labels, name) == (
        "rank 2 and rank 3 have racks 'a' and 'b' by label, but their link (704 Mbit/s and 0.2 ms) is one inside a rack"
    )


@pytest.mark.parametrize(
    ("labels", "racks", "found_by"),
    [
        (("b", "a", "b"), (0, 1, 0), FoundBy.LABELS),
        (("b", "", "b"), (0, 0, 0), FoundBy.NOTHING),
        ((), (0, 0, 0), FoundBy.NOTHING),
    ],
)
def test_links_that_were_not_measured_leave_it_to_labels_where_all_have_one(
    labels: tuple[str, ...], racks: tuple[int, ...], found_by: FoundBy
) -> None:
    told = unmeasured(3, complete(labels))
    assert (told.racks, told.found_by, told.disputes) == (racks, found_by, ())


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        (
            labelled(TWO_AND_TWO, ""),
            "in 2 racks by what links carry: 740 Mbit/s and 0.2 ms inside, 37 Mbit/s and 0.2 ms b",
        ),
        (
            labelled(alike(3, 98.0), "abc"),
            "Links between workers carry about 784 Mbit/s and 0.2 ms, and none is clearly slower, where what is above "
            "2,000 Mbit/s counts as that, so they count as one rack.",
        ),
        (labelled(alike(3, 5.5), ""), "No link is as fast as one inside a rack (44 Mbit/s and 0.2 ms), so each worker"),
        (unmeasured(3, ("a", "a", "b")), "in 2 racks by the label concertina.io/rack of their nodes; links were not"),
        (unmeasured(2, ("a", "b")), "in 2 racks by the label concertina.io/rack of their nodes; two workers have no"),
        (unmeasured(3), "Links were not all measured within a second, and not all nodes have the label concertina.io"),
    ],
)
def test_what_is_known_of_racks_is_told_in_a_sentence(topology: Topology, told: str) -> None:
    assert told in in_words(topology)
    assert in_words(topology).endswith(".")


@pytest.mark.parametrize(
    ("exchange", "racks", "told"),
    [
        (
            "topk across int4",
            (0, 1, 2),
            "each worker counts as a rack of its own, so all links are between racks: gradients travel as int4 instead "
            "of topk across int4",
        ),
        (
            "two_four across none in buckets of 4 MiB",
            (0, 0, 0),
            "all workers count as one rack, so no link is between racks: gradients travel as two_four in buckets of "
            "4 MiB instead of two_four across none in buckets of 4 MiB",
        ),
        ("topk across int4", (0, 0, 1), ""),
        ("topk across int4", (0,), ""),
        ("int4 after 3 dense", (0, 1, 2), ""),
    ],
)
def test_what_an_exchange_over_racks_comes_to_in_one_level_is_told(
    exchange: str, racks: tuple[int, ...], told: str
) -> None:
    assert one_level_in_words(exchange, racks) == told

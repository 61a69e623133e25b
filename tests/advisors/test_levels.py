"""What exchanges over racks are taken to cost: counted by hand, and against what was measured between machines."""

from __future__ import annotations

import pytest

from workers.advisors.levels import ONE_RACK, costs_of
from workers.measures import SchemeCost
from workers.racks import Topology

BYTES = {"none": 4.0, "bf16": 2.0, "int8": 1.02, "int4": 0.52}
FORMATS = {name: SchemeCost(bytes_a_value=b, seconds_a_million=0.012 / b) for name, b in BYTES.items()}
LEVELS = ("none across none", "bf16 across bf16", "bf16 across int4")


def racks(*numbers: int, inside: float = 125e6, across: float = 3.1e6) -> Topology:
    return Topology(racks=numbers, inside_bytes_per_s=inside, across_bytes_per_s=across)


def carried(name: str, topology: Topology, gradient_bytes: float | None = None) -> float:
    """Bytes of a value over the busiest rack's link."""
    return costs_of([name], FORMATS, topology, gradient_bytes)[name].bytes_a_value


@pytest.mark.parametrize(
    ("numbers", "name", "expected"),
    [
        ((0, 0, 1, 1), "none", 4.0 * 1.5),  # one neighbour is elsewhere, and gets 2 * 3 / 4
        ((0, 1, 0, 1), "none", 4.0 * 3.0),
        ((0, 0, 0, 1), "none", 4.0 * 1.5),
        ((0, 0, 1, 1), "int4", 0.52 * 2.0),  # two ranks send two others a quarter, twice
        ((0, 0, 0, 1), "int4", 0.52 * 1.5),
        ((0, 0, 1, 1), "none across int4", 0.52),  # a sum a rack
        ((0, 0, 1, 1, 2, 2), "none across int4", 0.52 * 4 / 3),  # of which each rack sums a third
    ],
)
def test_bytes_between_racks_are_those_that_cross(numbers: tuple[int, ...], name: str, expected: float) -> None:
    far = racks(*numbers, inside=1e12, across=1.0)
    assert carried(name, far) == pytest.approx(expected, rel=1e-6)


def test_what_travels_inside_counts_by_how_fast_links_are_there() -> None:
    near = racks(0, 0, 1, 1, inside=4e6, across=1e6)
    assert carried("bf16 across int4", near) == pytest.approx(0.52 + 1.0 * 2.0 / 4)  # half a gradient in, half out
    uneven = racks(0, 0, 0, 1, inside=4e6, across=1e6)
    assert carried("bf16 across int4", uneven) == pytest.approx(0.52 + 4.0 * 2.0 / 4)  # one rank has all the sums


def test_the_model_tells_what_was_measured_between_two_racks_of_two() -> None:
    """Two racks of a gigabit, 50 Mbit between; times as fast as fp32 by a ring, medians of three rounds."""
    measured = {"int4": 6.74, "bf16 across bf16": 2.79, "bf16 across int4": 9.45}
    found = racks(0, 0, 1, 1)
    for name, ratio in measured.items():
        assert carried("none", found) / carried(name, found) == pytest.approx(ratio, rel=0.15), name


def test_of_one_level_only_that_level_s_format_is_used() -> None:
    for topology, own in ((ONE_RACK, "bf16"), (racks(0, 0, 0), "bf16"), (racks(0, 1, 2), "int4")):
        assert costs_of(["bf16 across int4"], FORMATS, topology) == {"bf16 across int4": FORMATS[own]}
        assert costs_of(FORMATS, FORMATS, topology) == FORMATS


def test_codecs_of_both_levels_cost_their_time() -> None:
    costs = costs_of((*FORMATS, *LEVELS), FORMATS, racks(0, 0, 1, 1))
    bf16_s, int4_s = (FORMATS[name].seconds_a_million for name in ("bf16", "int4"))
    # Its part and half a sum are encoded, two halves and a sum decoded; across half a gradient is.
    assert costs["bf16 across int4"].seconds_a_million == pytest.approx(3.5 / 3 * bf16_s + int4_s / 2)
    assert costs["none"].seconds_a_million == FORMATS["none"].seconds_a_million


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("none", (0, 0, 0, 0), 2.0),
        ("int4", (0, 0, 0, 0), 0.52),
        ("none", (0, 0, 1, 1), 2.0 * 1.5),
        ("none across none", (0, 0, 1, 1), 4.0),  # racks add up in fp32
        ("none across none", (0, 0, 0, 0), 2.0),  # and one alone has an all-reduce
        ("none across none", (0, 1, 2, 3), 2.0),
        ("bf16 across none", (0, 1, 2, 3), 2.0),
    ],
)
def test_what_goes_as_it_is_has_the_bytes_of_the_parameters_format(
    name: str, numbers: tuple[int, ...], expected: float
) -> None:
    far = racks(*numbers, inside=1e12, across=1.0)
    assert carried(name, far, gradient_bytes=2.0) == pytest.approx(expected, rel=1e-6)

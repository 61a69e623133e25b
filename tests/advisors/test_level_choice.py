"""What the advisor comes to between two racks of two, against every pair of formats there is.

The links are the tests' own: they know nothing of the advisor's model, but carry what each rank sends, hop by hop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import pytest

from workers.advisors import exchange, levels
from workers.advisors.exchange import ALIKE_OVER_RACKS, LEAST_GAIN, Change, Link, Situation
from workers.control.compress import SCHEMES
from workers.exchange_options import formats_of
from workers.measures import SchemeCost
from workers.racks import Topology

BYTES = {"none": 4.0, "bf16": 2.0, "fp16": 2.02, "int8": 1.02, "int4": 0.52}
CODEC_S = {"none": 0.0, "bf16": 0.002, "fp16": 0.004, "int8": 0.01, "int4": 0.016}
"""Of a million values, encoded once and decoded twice: four ranks share two cores."""

MBIT = 1e6 / 8
NUM_VALUES, REST_S = 5_000_000, 0.05
FORMATS = ("none", "bf16", "int8", "int4")
PAIRS = tuple(f"{inside} across {across}" for inside, across in product(FORMATS, FORMATS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Racks:
    """Two of two ranks; megabits a second of a rank's link and of the one between racks, which both ranks share."""

    inside_mbit: float
    across_mbit: float
    codec_s: Mapping[str, float]

    def step_s(self, name: str) -> float:
        return REST_S + self.wire_s(name) + self.coding_s(name)

    def wire_s(self, name: str) -> float:
        inside, across = formats_of(name)
        if across is None:
            times = 1.5 if name == "none" else 2.0
            return times * NUM_VALUES * BYTES[inside] / (self.across_mbit * MBIT)
        half = NUM_VALUES / 2
        to_owner_s = from_owner_s = half * BYTES[inside] / (self.inside_mbit * MBIT)
        quarters = 2 * half / 2  # each rank sends half of its shard, to be summed, and then that sum
        summed_s = told_s = quarters * BYTES[across] / (self.across_mbit * MBIT)
        return to_owner_s + summed_s + told_s + from_owner_s

    def coding_s(self, name: str) -> float:
        inside, across = formats_of(name)
        one_s = {name: NUM_VALUES / 1e6 * seconds / 3 for name, seconds in self.codec_s.items()}
        if across is None:
            return 3 * one_s[inside]
        of_gradient_s = one_s["bf16" if inside == "none" else inside]
        own_s, sum_s, others_s, all_s = (times * of_gradient_s for times in (1.0, 0.5, 1.0, 1.0))
        return own_s + sum_s + others_s + all_s + 3 * one_s[across] / 2

    def situation(self, scheme: str, allowed: tuple[str, ...]) -> Situation:
        took_s = self.wire_s(scheme) + self.coding_s(scheme)
        return Situation(
            scheme=scheme,
            allowed=allowed,
            costs=levels.costs_of(allowed, self.formats, self.topology),
            num_ranks=4,
            num_values=NUM_VALUES,
            step_s=self.step_s(scheme),
            link=Link(exchange_s=took_s, exposed_s=took_s, wire_s=self.wire_s(scheme)),
        )

    @property
    def formats(self) -> dict[str, SchemeCost]:
        return {
            name: SchemeCost(bytes_a_value=BYTES[name], seconds_a_million=seconds)
            for name, seconds in self.codec_s.items()
        }

    @property
    def topology(self) -> Topology:
        return Topology(
            racks=(0, 0, 1, 1),
            inside_bytes_per_s=self.inside_mbit * MBIT,
            across_bytes_per_s=self.across_mbit * MBIT,
        )


def settled(racks: Racks, scheme: str, allowed: tuple[str, ...] = SCHEMES) -> str:
    """What a job ends with that does as it is advised; all of it pays, as links are as the model has them."""
    for _ in range(len(allowed)):
        advice = exchange.advise(racks.situation(scheme, allowed))
        if not isinstance(advice, Change):
            return scheme
        scheme = advice.scheme
    raise AssertionError(f"no end of changes: {scheme} of {racks}")


def without(name: str) -> tuple[str, ...]:
    return tuple(scheme for scheme in SCHEMES if name not in formats_of(scheme))


LINKS = [(1000, 50), (1000, 25), (400, 100), (200, 50), (200, 25), (150, 50), (100, 25), (100, 10), (75, 25)]


@pytest.mark.parametrize("links", LINKS, ids=str)
@pytest.mark.parametrize("codecs", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("lacks", ["", "int4"])
def test_the_choice_is_within_a_twentieth_of_the_best_of_all_pairs(
    links: tuple[float, float], codecs: float, lacks: str
) -> None:
    racks = Racks(
        inside_mbit=links[0],
        across_mbit=links[1],
        codec_s={name: codecs * seconds for name, seconds in CODEC_S.items()},
    )
    best_s = min(racks.step_s(name) for name in (*FORMATS, *PAIRS) if not lacks or lacks not in name)
    chosen = settled(racks, "none", without(lacks))
    assert racks.step_s(chosen) <= 1.05 * best_s, chosen
    for begins in ("bf16 across int8", "int8 across int8"):
        chosen = settled(racks, begins, without(lacks))
        assert racks.step_s(chosen) <= LEAST_GAIN * ALIKE_OVER_RACKS * best_s, (begins, chosen)


@pytest.mark.parametrize(
    ("links", "name"),
    [
        ((1000, 50), "bf16 across int4"),
        ((400, 20), "int8 across int4"),
        ((100, 25), "int4 across int4"),
        ((200, 50), "int4 across int4"),
    ],
)
def test_the_slower_links_are_inside_the_fewer_bytes_they_carry(links: tuple[float, float], name: str) -> None:
    assert settled(Racks(inside_mbit=links[0], across_mbit=links[1], codec_s=CODEC_S), "none") == name


def test_what_loses_less_inside_is_taken_where_it_is_expected_to_be_as_fast() -> None:
    racks = Racks(inside_mbit=5000, across_mbit=50, codec_s=dict.fromkeys(CODEC_S, 0.0))
    took_s = {name: racks.step_s(name) for name in ("bf16 across int4", "int4 across int4")}
    assert took_s["int4 across int4"] < took_s["bf16 across int4"]
    assert settled(racks, "none") == "bf16 across int4"


def test_back_from_fewer_bytes_inside_to_what_loses_less_there_once_links_are_faster() -> None:
    now = Racks(inside_mbit=2000, across_mbit=25, codec_s=CODEC_S)
    advice = exchange.advise(now.situation("int4 across int4", SCHEMES))
    assert isinstance(advice, Change)
    assert advice.scheme == "bf16 across int4"
    assert "which loses less than int4 across int4" in advice.reason
    assert isinstance(exchange.advise(now.situation(advice.scheme, SCHEMES)), exchange.Keep)

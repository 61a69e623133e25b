"""What exchanges cost where ranks sit in racks: bytes that the slow links carry, and the codecs of both levels. Pure.

Counted as ``workers.training.exchange`` sends them, one way and over the link of the busiest rack, by value of the
gradient: a ring's for dense gradients, a reduce-scatter's and an all-gather's by all-to-all for other formats, one sum
a rack over racks. What travels inside a rack counts by as much less as links are faster there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from workers.exchange_options import formats_of, used_over
from workers.measures import SchemeCost
from workers.racks import Topology

ONE_RACK = Topology(racks=(0,))


def costs_of(
    names: Iterable[str],
    formats: Mapping[str, SchemeCost],
    topology: Topology = ONE_RACK,
    gradient_bytes: float | None = None,
) -> dict[str, SchemeCost]:
    """The costs of exchanges by name, where ``formats`` are what each format costs by itself.

    An all-reduce sends gradients in their own format, of ``gradient_bytes`` a value; racks send those that stay as they
    are in fp32. None: of as many bytes.
    """
    dense = formats["none"]
    flat = {**formats, "none": replace(dense, bytes_a_value=gradient_bytes or dense.bytes_a_value)}
    return {name: _cost(name, formats, flat, topology) for name in names}


def gathered(cost: SchemeCost, num_ranks: int) -> SchemeCost:
    """Of a scheme by which all get what each sends, at what it costs two; what decoding more takes is left out."""
    return replace(cost, bytes_a_value=cost.bytes_a_value * num_ranks / 2)


def _cost(
    name: str, formats: Mapping[str, SchemeCost], flat: Mapping[str, SchemeCost], topology: Topology
) -> SchemeCost:
    inside, across = formats_of(name)
    if not topology.has_levels:
        return flat[formats_of(used_over(name, topology.racks))[0]]
    if across is None:
        own = flat[inside]
        num_times = _ring_times(topology.racks) if inside == "none" else _all_to_all_times(topology)
        return SchemeCost(bytes_a_value=num_times * own.bytes_a_value, seconds_a_million=own.seconds_a_million)
    num_racks, sizes = len(topology.members), [len(ranks) for ranks in topology.members]
    num_times = 1.0 if num_racks == 2 else 2.0 * (num_racks - 1) / num_racks
    return SchemeCost(
        bytes_a_value=num_times * formats[across].bytes_a_value
        + _inside_times(max(sizes), min(sizes)) * formats[inside].bytes_a_value * _slowness(topology),
        seconds_a_million=_codec_s(formats, inside, across, max(sizes), min(sizes)),
    )


def _ring_times(racks: tuple[int, ...]) -> float:
    """Ranks send all but one of as many parts twice to the next; so many of a rack's have the next elsewhere."""
    size = len(racks)
    leaving = [rack for rank, rack in enumerate(racks) if racks[(rank + 1) % size] != rack]
    return max(leaving.count(rack) for rack in set(racks)) * 2.0 * (size - 1) / size


def _all_to_all_times(topology: Topology) -> float:
    """Each rank sends its part of what each rank elsewhere sums, and then of what it sums itself to each of those."""
    size = len(topology.racks)
    return max(2.0 * len(ranks) * (size - len(ranks)) / size for ranks in topology.members)


def _inside_times(most: int, least: int) -> float:
    """Of a rack of ``most`` ranks the busiest, where ``least`` own a shard each: its own in, and the sum of it out."""
    return max(2.0 * (most - 1) / least, 2.0 if most > least else 0.0)


def _slowness(topology: Topology) -> float:
    if not topology.inside_bytes_per_s or not topology.across_bytes_per_s:
        return 0.0
    return min(1.0, topology.across_bytes_per_s / topology.inside_bytes_per_s)


def _codec_s(formats: Mapping[str, SchemeCost], inside: str, across: str, most: int, least: int) -> float:
    """Of the busiest rank. A format's seconds are those of encoding all once and decoding it twice, a third each."""
    passes = (1 + 1 / least) + (most / least + 1)  # all of it and then a shard's sum; the others' parts and then all
    # Values that stay what they are get copied, which takes about what rounding them does.
    own = formats["bf16" if inside == "none" and "bf16" in formats else inside]
    return passes / 3 * own.seconds_a_million + formats[across].seconds_a_million / least

"""What the advisor comes to on simulated machines, against every assignment of formats to buckets there is.

The machines are the tests' own: they know nothing of the advisor's model, its candidates or their names, but play each
bucket through. A bucket is there when backward has made and encoded it; the link takes one after the other; where
ranks are more than two, what was encoded has a second way, of as many bytes, behind the first of the bucket that comes
next, or when all is there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest

from workers.advisors import exchange
from workers.advisors.exchange import ALIKE, LEAST_GAIN, Change, Link, Situation
from workers.exchange_options import bucketed
from workers.measures import SchemeCost

BYTES = {"none": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
COLLECTIVE_S = 0.002
NUM_MACHINES, MOST_CHANGES = 160, 12

CLOSE = 1.03 * LEAST_GAIN * ALIKE
"""What is slower than the best by less is not worth a change, or loses less; the rest is for what the advisor leaves to
latency, and for mixes that are only tried once the others' formats pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """``dense_s`` is what the link takes for all gradients in fp32, ``codec_s`` what all take to encode and decode."""

    num_ranks: int
    dense_s: float
    backward_s: float
    rest_s: float
    codec_s: Mapping[str, float]
    cuts: Mapping[int, tuple[float, ...]]

    def step(self, bucket_mib: int, formats: Sequence[str]) -> tuple[float, Link]:
        """Seconds of a step whose buckets go in these formats, and what is seen of its exchange."""
        now_s = free_s = busy_s = decoding_s = 0.0
        begun_s, second_way_s = -1.0, 0.0
        for share, name in zip(self.cuts[bucket_mib], formats, strict=True):
            now_s += share * (self.backward_s + self.codec_s[name] / 3) + COLLECTIVE_S
            begun_s = now_s if begun_s < 0.0 else begun_s
            wire_s, again_s = share * self.dense_s * BYTES[name] / BYTES["none"], second_way_s
            now_s += COLLECTIVE_S if again_s > 0.0 else 0.0
            second_way_s = wire_s / 2 if name != "none" and self.num_ranks > 2 else 0.0
            on_link_s = wire_s - second_way_s + again_s
            free_s, busy_s = max(free_s, now_s) + on_link_s, busy_s + on_link_s
            decoding_s += share * self.codec_s[name] * 2 / 3
        ends_s = max(free_s, now_s) + second_way_s + (COLLECTIVE_S if second_way_s > 0.0 else 0.0) + decoding_s
        link = Link(
            exchange_s=ends_s - begun_s,
            exposed_s=ends_s - now_s,
            wire_s=busy_s + second_way_s,
            backward_s=now_s,
        )
        return self.rest_s + ends_s, link

    def named(self, name: str) -> tuple[float, Link]:
        """Likewise of an exchange of this name."""
        formats, bucket_mib, num_dense = bucketed(name)
        num_buckets = len(self.cuts[bucket_mib])
        return self.step(bucket_mib, ["none"] * num_dense + [formats] * (num_buckets - num_dense))

    def best_s(self) -> float:
        """Of all cuts, and of all ways to send each of their buckets in a format of its own."""
        return min(
            self.step(bucket_mib, assigned)[0]
            for bucket_mib, shares in self.cuts.items()
            for assigned in product(BYTES, repeat=len(shares))
        )


def drawn(num_ranks: int) -> Iterator[Machines]:
    """Links that are slower than their latency matters, and codecs that are quicker than links."""
    rng = random.Random(num_ranks)
    for _ in range(NUM_MACHINES):
        num_buckets, dense_s = rng.randint(1, 3), rng.choice((1.0, 2.0, 4.0))
        cuts = {25: _shares(rng, num_buckets)}
        if rng.random() < 0.7:
            cuts[4] = _shares(rng, rng.randint(num_buckets + 1, 6))
        yield Machines(
            num_ranks=num_ranks,
            dense_s=dense_s,
            backward_s=rng.choice((0.25, 0.5, 1.0, 2.0, 5.0)),
            rest_s=rng.choice((0.05, 0.5, 1.0)),
            codec_s={name: 0.0 if name == "none" else dense_s * rng.choice((0.0, 0.01, 0.03)) for name in BYTES},
            cuts=cuts,
        )


def _shares(rng: random.Random, num: int) -> tuple[float, ...]:
    parts = [rng.uniform(0.05, 1.0) for _ in range(num)]
    return tuple(part / sum(parts) for part in parts)


def seen(machines: Machines, scheme: str) -> Situation:
    step_s, link = machines.named(scheme)
    return Situation(
        scheme=scheme,
        allowed=tuple(BYTES),
        costs={n: SchemeCost(bytes_a_value=b, seconds_a_million=machines.codec_s[n]) for n, b in BYTES.items()},
        num_ranks=machines.num_ranks,
        num_values=1_000_000,
        step_s=step_s,
        link=link,
        buckets=machines.cuts,
    )


def settled(machines: Machines, scheme: str) -> str:
    """What a job ends with that does as it is advised, and takes back what did not pay."""
    told = seen(machines, scheme)
    for _ in range(MOST_CHANGES):
        advice = exchange.advise(told)
        if not isinstance(advice, Change):
            return told.scheme
        gain = told.step_s / machines.named(advice.scheme)[0]
        if gain >= advice.least_kept:
            told = replace(seen(machines, advice.scheme), refused=told.refused, spent=min(1.0, told.spent * gain))
        else:
            told = replace(told, refused={**told.refused, advice.scheme: exchange.pace_s(told)})
    raise AssertionError(f"no end of changes from {scheme}: {told.scheme} of {machines}")


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_format_for_each_bucket_brings_less_over_the_first_as_they_are_than_a_change_is_for(num_ranks: int) -> None:
    """So names have two formats. Of four ranks they are faster than one for all buckets, by less than that too.

    What goes as it is loses nothing, though.
    """
    lost = {False: 1.0, True: 1.0}
    for machines in drawn(num_ranks):
        best_s, ways = machines.best_s(), [*product(machines.cuts, BYTES)]
        for is_mixed in lost:
            found_s = min(
                machines.step(bucket_mib, ["none"] * num + [name] * (len(machines.cuts[bucket_mib]) - num))[0]
                for bucket_mib, name in ways
                for num in (range(len(machines.cuts[bucket_mib])) if is_mixed else (0,))
            )
            lost[is_mixed] = max(lost[is_mixed], found_s / best_s)
    assert lost[True] <= lost[False] < LEAST_GAIN
    assert num_ranks == 2 or lost[True] < lost[False]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("begins", ["none", "int8", "int4"])
def test_a_job_comes_close_to_the_best_of_all_assignments(num_ranks: int, begins: str) -> None:
    for machines in drawn(num_ranks):
        scheme = settled(machines, begins)
        assert machines.named(scheme)[0] <= CLOSE * machines.best_s(), (scheme, machines)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_no_more_buckets_than_are_worth_it_go_in_other_formats(num_ranks: int) -> None:
    """Of those that it ends with: as many as may go as they are, and steps are no shorter, do."""
    for machines in drawn(num_ranks):
        formats, bucket_mib, num_dense = bucketed(scheme := settled(machines, "int4"))
        shares = machines.cuts[bucket_mib]
        for num in range(num_dense + 1, len(shares)):
            if formats != "none" and sum(shares[num_dense:num]) >= exchange.LEAST_MIX:
                more = ["none"] * num + [formats] * (len(shares) - num)
                assert machines.named(scheme)[0] <= 1.02 * machines.step(bucket_mib, more)[0], (scheme, num, machines)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_what_is_expected_of_fewer_bytes_or_other_buckets_comes(num_ranks: int) -> None:
    for machines in drawn(num_ranks):
        told = seen(machines, "none")
        for name in exchange.candidates(told):
            assert exchange.predict(told, name) == pytest.approx(machines.named(name)[0], rel=0.075), (name, machines)

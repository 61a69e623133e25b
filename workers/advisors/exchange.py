"""How gradients should travel: the scheme that makes steps fastest over the link as it is. Pure; times are seconds.

A linear model of one exchange: some time whatever it carries, the link's in proportion to its bytes, a codec's to its
values. What backward does not hide of the first two is exposed, and so is all that a codec takes, as it needs the same
cores. An exchange has a name of ``workers.exchange_options``: the formats that gradients travel in, their buckets, and
how many of those, the first, go as they are. Of buckets alike no other choice of such is better: what an early one
carries the link may have done with before backward ends, and what is behind it never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from workers.advisors import buckets
from workers.exchange_options import BUCKET_MIB, bucketed, formats_of, in_buckets
from workers.measures import SchemeCost

LEAST_GAIN = 1.05
"""Another scheme must make steps this many times as fast: less is noise, and not worth its rounding."""

LEAST_KEPT = 1.02
"""What it must turn out to bring; it was expected to be ``LEAST_GAIN`` at least."""

GENTLER_GAIN = 0.99
GENTLER_KEPT = 0.97
"""Likewise of a scheme that loses less: not to be slower is enough, but for noise."""

ALIKE = 1.03
"""Of schemes whose steps are within this factor of the fastest's the one that loses least is taken."""

ALIKE_OVER_RACKS = 1.045
"""Likewise where the fastest goes over racks: of cores that ranks share codecs take more than was measured alone."""

TINY_GRADIENT = 2**16
"""Gradients of fewer values travel as they are: a link of 50 Mbit has sent them in 40 ms, and on a busy machine a step
waits as long for the cores."""

SLOWER = 1.5
"""A scheme that did not pay is tried again where the link has become this many times as slow, or as fast."""

LATENCY_S = 0.02
"""An exchange may take so long on a busy machine whatever its bytes, be its links ever so short."""

LEAST_REST = 0.01
"""The least share of a step that is no exchange; what was measured of the two is not exact."""

RESTLESS = 0.9
"""A link that is at work for this share of an exchange has no rests in it."""

FAST_BYTES_PER_S = 250e6
"""A link that carries so much has sent gradients by the time they would be encoded."""

DENSE = "none"

LEAST_MIX = 0.1
"""Of the gradient: by less the part that goes as it is differs from that in force only as what was measured does."""

ONE_HOP = (DENSE, "topk")
"""Formats whose buckets go in one hop between any number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One exchange on the rank that waits least, so for no other: from its first bucket on, and what it waited of it.

    Seconds, with the scheme in force. ``wire_s`` is what the link was at work of it: behind a long backward pass
    buckets leave late, not slowly. ``backward_s`` is what that pass took, with what was encoded meanwhile, ``codec_s``
    what encoding and decoding took who is slowest at it. None where nobody sees that.
    """

    exchange_s: float
    exposed_s: float
    wire_s: float | None = None
    backward_s: float | None = None
    codec_s: float | None = None

    @property
    def busy_s(self) -> float:
        """What is known of the link's own time, the whole exchange at most."""
        return self.exchange_s if self.wire_s is None else self.wire_s

    @property
    def taken_s(self) -> float:
        """The same with what codecs are known to have taken besides."""
        return self.busy_s if self.wire_s is None else self.busy_s + (self.codec_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A group that trains with the exchange ``scheme``.

    ``allowed`` are the formats that it may use, that which loses least first; ``costs`` what the slowest worker
    measured of each. ``num_values`` are a gradient's, ``step_s`` the seconds of a step. ``buckets`` are those that
    gradients may travel in, as shares of all, by mebibytes, the usual ones first. ``refused`` maps exchanges that did
    not pay to ``pace_s`` at that time; ``barred`` are not to be tried. ``spent`` is how fast steps still are where what
    loses less was kept: several one after the other may cost no more than one. ``latency_s``: no bytes less make an
    exchange shorter. ``relays``: buckets take later hops while gradients are made, as on CPUs.
    """

    scheme: str
    allowed: tuple[str, ...]
    costs: Mapping[str, SchemeCost]
    num_ranks: int
    num_values: int
    step_s: float
    link: Link
    buckets: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)
    barred: frozenset[str] = frozenset()
    spent: float = 1.0
    latency_s: float = LATENCY_S
    relays: bool = True

    @property
    def formats(self) -> str:
        """Of the exchange in force."""
        return bucketed(self.scheme)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Leave the scheme as it is; ``reason`` is a sentence for the job's owner."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Use ``scheme``; ``expected_gain`` is the speed of steps over the present one, ``least_kept`` what it must be."""

    scheme: str
    reason: str
    expected_gain: float
    least_kept: float = LEAST_KEPT


Advice: TypeAlias = Keep | Change


def codec_s(situation: Situation, scheme: str) -> float:
    """What encoding and decoding take of one exchange.

    That in force takes what was measured of it, and others take as many times as much as their costs say: those are
    from when workers started, and what keeps a machine busy, or slow, does so to all of them. No time at all is none
    that was measured.
    """
    took_s, told_s = situation.link.codec_s, _told_codec_s(situation, situation.scheme)
    times = took_s / told_s if took_s and told_s > 0.0 else 1.0
    return times * _told_codec_s(situation, scheme)


def _told_codec_s(situation: Situation, scheme: str) -> float:
    """The same by costs alone."""
    num_coded = (1.0 - _dense_share(situation, scheme)) * situation.num_values
    return situation.costs[bucketed(scheme)[0]].seconds_a_million * num_coded / 1e6


def link_s(situation: Situation) -> float:
    """What the link takes of an exchange of dense gradients, for their bytes alone."""
    return _carried_s(situation) / _share(situation, situation.scheme)


def pace_s(situation: Situation) -> float:
    """What the link takes of an exchange for as many bytes as dense gradients have, be it for them or not.

    Where all of it may be latency nothing else tells one link from another.
    """
    return _own_s(situation) / _share(situation, situation.scheme)


def seen_latency_s(situation: Situation, before: str, pace_s: float) -> float | None:
    """What the link takes whatever is sent, as the present exchange tells, and ``before``, of such a ``pace_s``.

    A line through two points, of bytes and seconds. None where the present one does not send less than what travels as
    it is, as points that are near each other tell little, and where nobody sees the link's own time: what encoding
    takes more than was measured is not to be held against a link.
    """
    then, now = _share(situation, before), _share(situation, situation.scheme)
    if situation.link.wire_s is None or then <= now or bucketed(before)[0] != DENSE:
        return None
    dense_s = max(0.0, (pace_s * then - situation.link.wire_s) / (then - now))
    return max(0.0, (pace_s - dense_s) * then)


def predict(situation: Situation, scheme: str) -> float:
    """Seconds of a step with another scheme; with the one in force those that were measured."""
    if scheme == situation.scheme:
        return situation.step_s
    before_s, after_s = (_exposed_s(situation, one) for one in (situation.scheme, scheme))
    return max(situation.step_s - before_s, LEAST_REST * situation.step_s) + after_s


def candidates(situation: Situation) -> list[str]:
    """The exchanges that may pay, that which loses least first; the one in force is among them, allowed or not."""
    now = situation.formats
    names = situation.allowed if now in situation.allowed else (*situation.allowed, now)
    return [scheme for name in names for scheme in _ways(situation, name) if _may_pay(situation, scheme)]


def _ways(situation: Situation, formats: str) -> list[str]:
    """How such formats may travel, with the most as it is first, the one in force among them.

    Buckets go as they are only where the others' formats are known to pay: it is them that it must not be slower than.
    """
    cuts = _cuts(situation, formats)
    ways = [in_buckets(formats, bucket_mib) for bucket_mib in cuts]
    if formats == situation.formats:
        mixed = [in_buckets(formats, bucket_mib, _num_dense(situation, formats, bucket_mib)) for bucket_mib in cuts]
        ways = [*mixed, situation.scheme, *ways]
    return sorted(dict.fromkeys(ways), key=lambda scheme: -_dense_share(situation, scheme))


def _cuts(situation: Situation, formats: str) -> list[int]:
    """The buckets that such formats may travel in, in mebibytes; those in force are among them."""
    now, bucket_mib, _ = bucketed(situation.scheme)
    if _is_over_racks(situation, formats):
        return [*dict.fromkeys((BUCKET_MIB, bucket_mib))] if formats == now else [BUCKET_MIB]
    return [*situation.buckets] if _knows_buckets(situation) else [bucket_mib]


def _num_dense(situation: Situation, formats: str, bucket_mib: int) -> int:
    """How many buckets may go as they are for steps to be the shortest, of equal ones the most; 0 where none gains."""
    if formats == DENSE or formats_of(formats)[1] is not None or not _knows_buckets(situation):
        return 0
    names = [in_buckets(formats, bucket_mib, n) for n in range(len(situation.buckets[bucket_mib]))]
    best = min(reversed(names), key=lambda name: round(_exposed_s(situation, name), 6))
    if bucketed(situation.scheme)[:2] == (formats, bucket_mib):
        differs = _dense_share(situation, best) - _dense_share(situation, situation.scheme)
        best = situation.scheme if abs(differs) < LEAST_MIX else best
    return bucketed(best)[2]


def _dense_share(situation: Situation, scheme: str) -> float:
    """Of the gradient, what goes as it is before the rest goes in other formats."""
    _, bucket_mib, num_dense = bucketed(scheme)
    return sum(situation.buckets.get(bucket_mib, ())[:num_dense])


def _is_over_racks(situation: Situation, formats: str) -> bool:
    """Whether they go in many hops of which the first are the fast ones: backward can hide little of that."""
    return formats_of(formats)[1] is not None and situation.num_ranks > 2


def _num_hops(situation: Situation, formats: str) -> int:
    """Hops of a bucket; all but the first wait until the next has left. Each of two carries half of the bytes."""
    if formats in ONE_HOP or (situation.num_ranks == 2 and formats != "powersgd"):
        return 1
    return 2


def _knows_buckets(situation: Situation) -> bool:
    return situation.link.backward_s is not None and bucketed(situation.scheme)[1] in situation.buckets


def advise(situation: Situation) -> Advice:
    """Another scheme, where it is likely to pay."""
    took_s = {scheme: predict(situation, scheme) for scheme in candidates(situation)}
    fastest = min(took_s, key=lambda scheme: took_s[scheme])
    alike = ALIKE_OVER_RACKS if _is_over_racks(situation, bucketed(fastest)[0]) else ALIKE
    best = next(scheme for scheme in took_s if took_s[scheme] <= alike * took_s[fastest])
    gain = situation.step_s / took_s[best]
    exposed = f"a step of {_told(situation.step_s)} waits {_told(situation.link.exposed_s)} for gradients"
    is_gentler = _loss(situation, best, took_s) < _loss(situation, situation.scheme, took_s)
    is_due = is_gentler or (best == situation.formats and _is_over_racks(situation, best))
    least_kept = GENTLER_KEPT / situation.spent if is_due else LEAST_KEPT
    if best != situation.scheme and gain >= (max(GENTLER_GAIN, least_kept) if is_due else LEAST_GAIN):
        instead = f", which loses less than {situation.scheme}," if is_gentler else f" instead of {situation.scheme}"
        return Change(
            scheme=best,
            reason=f"{exposed}; {best}{instead} is expected to make it {gain:.2f} times as fast",
            expected_gain=gain,
            least_kept=least_kept,
        )
    told = f"Gradients travel {in_words(situation.scheme)}: {exposed}"
    others = {scheme: seconds for scheme, seconds in took_s.items() if scheme != situation.scheme}
    if not others:
        return Keep(reason=f"{told}, and {_lack(situation)}.")
    other = min(others, key=lambda scheme: others[scheme])
    return Keep(
        reason=f"{told}, and {other} is expected to make it {situation.step_s / others[other]:.2f} times as fast, "
        f"where {LEAST_GAIN} is the least that is worth a change."
    )


def _loss(situation: Situation, scheme: str, tried: Iterable[str]) -> tuple[int, float]:
    """Less of what loses less than another, of those that were tried."""
    names = [bucketed(name)[0] for name in tried]
    return names.index(bucketed(scheme)[0]), -_dense_share(situation, scheme)


def _lack(situation: Situation) -> str:
    """Why there is no other scheme to be tried."""
    if set(situation.allowed) <= {situation.formats} and not situation.refused:
        return "the job allows no other scheme"
    if situation.formats == DENSE and _is_tiny(situation):
        return "so few bytes are not worth another scheme"
    if situation.formats == DENSE and _carried_s(situation) <= 0.0:
        return "the link takes that whatever their bytes are"
    return "no other scheme is left that may pay"


def _is_tiny(situation: Situation) -> bool:
    return situation.num_values < TINY_GRADIENT


def _may_pay(situation: Situation, scheme: str) -> bool:
    if scheme == situation.scheme:
        return True
    formats, refused_s = bucketed(scheme)[0], situation.refused.get(scheme)
    if formats not in situation.costs or scheme in situation.barred:
        return False
    num_bytes = _share(situation, situation.scheme) * situation.costs[DENSE].bytes_a_value * situation.num_values
    is_fast = num_bytes >= FAST_BYTES_PER_S * _carried_s(situation)
    is_needed = formats == DENSE or not (is_fast or _is_tiny(situation))
    return is_needed and (refused_s is None or _is_another_link(situation, scheme, refused_s))


def _is_another_link(situation: Situation, scheme: str, refused_s: float) -> bool:
    """Whether the link has changed in favour of a scheme that did not pay: slower for fewer bytes, faster for more.

    Of as many bytes smaller buckets are for slower links.
    """
    now_s = pace_s(situation)
    sizes = [(_share(situation, one), bucketed(one)[1]) for one in (situation.scheme, scheme)]
    return SLOWER * now_s < refused_s if sizes[1] > sizes[0] else now_s > SLOWER * refused_s


def _carried_s(situation: Situation) -> float:
    """What the link takes with the scheme in force, for its bytes alone."""
    return max(0.0, _own_s(situation) - situation.latency_s)


def _own_s(situation: Situation) -> float:
    """What the link takes with the scheme in force, be it for bytes or not."""
    link = situation.link
    return max(0.0, link.exchange_s - codec_s(situation, situation.scheme)) if link.wire_s is None else link.wire_s


def _exposed_s(situation: Situation, scheme: str) -> float:
    link, codecs_s = situation.link, codec_s(situation, scheme)
    is_flat = not any(_is_over_racks(situation, bucketed(one)[0]) for one in (situation.scheme, scheme))
    if is_flat and _knows_buckets(situation) and link.backward_s is not None:
        before, after = (_leaving(situation, one) for one in (situation.scheme, scheme))
        known_s = max(0.0, link.exposed_s - codec_s(situation, situation.scheme))
        return buckets.exposed_s(known_s, before, after, link.backward_s) + codecs_s
    on_link_s = _on_link_s(situation, scheme)
    room_s = max(0.0, link.exchange_s - link.exposed_s)
    return max(on_link_s - room_s, _last_share(situation) * on_link_s) + codecs_s


def _leaving(situation: Situation, scheme: str) -> buckets.Leaving:
    """What it takes whatever the bytes are is no bucket's: it is part of what is known, and stays."""
    formats, bucket_mib, num_dense = bucketed(scheme)
    return buckets.Leaving(
        shares=situation.buckets[bucket_mib],
        coded_s=link_s(situation) * _share(situation, formats),
        num_hops=_num_hops(situation, formats),
        num_dense=num_dense,
        dense_s=link_s(situation),
        relayed=situation.relays,
    )


def _on_link_s(situation: Situation, scheme: str) -> float:
    """What the link takes of an exchange, be it for bytes or not."""
    return min(_own_s(situation), situation.latency_s) + link_s(situation) * _share(situation, scheme)


def _last_share(situation: Situation) -> float:
    """The share of an exchange that leaves when backward is over, so that nothing hides it; 0 where it does not show.

    It shows where the link has rests: then what is waited for all the same came last.
    """
    link, codecs_s = situation.link, codec_s(situation, situation.scheme)
    if link.wire_s is None or link.wire_s + codecs_s > RESTLESS * link.exchange_s or link.wire_s <= 0.0:
        return 0.0
    return min(1.0, max(0.0, link.exposed_s - codecs_s) / link.wire_s)


def _share(situation: Situation, scheme: str) -> float:
    """Of the bytes of dense gradients."""
    dense_share = _dense_share(situation, scheme)
    coded = situation.costs[bucketed(scheme)[0]].bytes_a_value / situation.costs[DENSE].bytes_a_value
    return dense_share + (1.0 - dense_share) * coded


def in_words(scheme: str) -> str:
    """``as they are``, or ``as int4``; with their buckets where those are not the usual ones."""
    formats = bucketed(scheme)[0]
    return f"as they are{scheme.removeprefix(DENSE)}" if formats == DENSE else f"as {scheme}"


def _told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"

"""How gradients should travel: the scheme that makes steps fastest over the link as it is. Pure; times are seconds.

A linear model of one exchange: some time whatever it carries, the link's in proportion to its bytes, a codec's to its
values. What backward does not hide of the first two is exposed, and so is all that a codec takes, as it needs the same
cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from workers.exchange_options import SMALL_GRADIENT
from workers.measures import SchemeCost

LEAST_GAIN = 1.05
"""Another scheme must make steps this many times as fast: less is noise, and not worth its rounding."""

LEAST_KEPT = 1.02
"""What it must turn out to bring; it was expected to be ``LEAST_GAIN`` at least."""

ALIKE = 1.03
"""Of schemes whose steps are within this factor of the fastest's the one that loses least is taken."""

SLOWER = 1.5
"""A scheme that did not pay is tried again where the link has become this many times as slow."""

LATENCY_S = 0.02
"""An exchange may take so long on a busy machine whatever its bytes: no bytes less make it shorter."""

LEAST_REST = 0.01
"""The least share of a step that is no exchange; what was measured of the two is not exact."""

FAST_BYTES_PER_S = 250e6
"""A link that carries so much has sent gradients by the time they would be encoded."""

DENSE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One exchange on the rank that waits least, so for no other: from its first bucket on, and what it waited of it.

    Seconds, with the scheme in force.
    """

    exchange_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A group that trains with ``scheme``.

    ``allowed`` are the schemes that it may use, the one that loses least first; ``costs`` what the slowest worker
    measured of each. ``num_values`` are a gradient's, ``step_s`` the seconds of a step. ``refused`` maps
    schemes that did not pay to ``link_s`` at that time.
    """

    scheme: str
    allowed: tuple[str, ...]
    costs: Mapping[str, SchemeCost]
    num_values: int
    step_s: float
    link: Link
    refused: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Leave the scheme as it is; ``reason`` is a sentence for the job's owner."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Use ``scheme``; ``expected_gain`` is the speed of steps over the present one."""

    scheme: str
    reason: str
    expected_gain: float


Advice: TypeAlias = Keep | Change


def codec_s(situation: Situation, scheme: str) -> float:
    """What encoding and decoding take of one exchange."""
    return situation.costs[scheme].seconds_a_million * situation.num_values / 1e6


def link_s(situation: Situation) -> float:
    """What the link takes of an exchange of dense gradients, for their bytes alone."""
    return _carried_s(situation) / _share(situation, situation.scheme)


def predict(situation: Situation, scheme: str) -> float:
    """Seconds of a step with another scheme; with the one in force those that were measured."""
    if scheme == situation.scheme:
        return situation.step_s
    before_s, after_s = (_exposed_s(situation, one) for one in (situation.scheme, scheme))
    return max(situation.step_s - before_s, LEAST_REST * situation.step_s) + after_s


def candidates(situation: Situation) -> list[str]:
    """The schemes that may pay, the one that loses least first."""
    return [scheme for scheme in situation.allowed if _may_pay(situation, scheme)]


def advise(situation: Situation) -> Advice:
    """Another scheme, where it is likely to pay."""
    took_s = {scheme: predict(situation, scheme) for scheme in candidates(situation)}
    best = next(scheme for scheme in took_s if took_s[scheme] <= ALIKE * min(took_s.values()))
    gain = situation.step_s / took_s[best]
    exposed = f"a step of {_told(situation.step_s)} waits {_told(situation.link.exposed_s)} for gradients"
    if best != situation.scheme and gain >= LEAST_GAIN:
        return Change(
            scheme=best,
            reason=f"{exposed}; {best} instead of {situation.scheme} is expected to make it {gain:.2f} times as fast",
            expected_gain=gain,
        )
    told = f"Gradients travel {in_words(situation.scheme)}: {exposed}"
    others = {scheme: seconds for scheme, seconds in took_s.items() if scheme != situation.scheme}
    if not others:
        return Keep(reason=f"{told}, and no other scheme is left that may pay.")
    other = min(others, key=lambda scheme: others[scheme])
    return Keep(
        reason=f"{told}, and {other} is expected to make it {situation.step_s / others[other]:.2f} times as fast, "
        f"where {LEAST_GAIN} is the least that is worth a change."
    )


def _may_pay(situation: Situation, scheme: str) -> bool:
    if scheme == situation.scheme:
        return True
    refused_s, is_known = situation.refused.get(scheme), scheme in situation.costs
    num_bytes = situation.costs[situation.scheme].bytes_a_value * situation.num_values
    is_fast = num_bytes >= FAST_BYTES_PER_S * _carried_s(situation)
    is_needed = scheme == DENSE or not (is_fast or situation.num_values < SMALL_GRADIENT)
    is_slower = refused_s is not None and link_s(situation) > SLOWER * refused_s
    return is_known and is_needed and (refused_s is None or is_slower)


def _carried_s(situation: Situation) -> float:
    """What the link takes with the scheme in force, for its bytes alone."""
    return max(0.0, situation.link.exchange_s - codec_s(situation, situation.scheme) - LATENCY_S)


def _exposed_s(situation: Situation, scheme: str) -> float:
    own_s = max(0.0, situation.link.exchange_s - codec_s(situation, situation.scheme))
    hidden_s = max(0.0, situation.link.exchange_s - situation.link.exposed_s)
    on_link_s = min(own_s, LATENCY_S) + link_s(situation) * _share(situation, scheme)
    return max(0.0, on_link_s - hidden_s) + codec_s(situation, scheme)


def _share(situation: Situation, scheme: str) -> float:
    """Of the bytes of dense gradients."""
    return situation.costs[scheme].bytes_a_value / situation.costs[DENSE].bytes_a_value


def in_words(scheme: str) -> str:
    """``as they are``, or ``as int4``."""
    return "as they are" if scheme == DENSE else f"as {scheme}"


def _told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"

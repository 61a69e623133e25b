"""What the exchange of gradients takes of steps: figures from telemetry, of one job and of all, and as words. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from service import rounds, words

PARTS: Mapping[str, str] = {
    "exchange": "exchange_s",
    "exposed": "exposed_s",
    "hidden": "hidden_s",
    "encode": "encode_s",
    "decode": "decode_s",
}
"""Telemetry keys of an exchange's time by Prometheus' words: the whole, and of it waits and codecs."""

_ALIKE = 0.05
"""Headers, and what rides with gradients, take so much."""

_OF_A_STEP = ("step_s", *PARTS.values(), "wire_bytes", "wire_bytes_across")

Figures: TypeAlias = Mapping[str, float]


def figures(told: Iterable[rounds.Told]) -> dict[str, float]:
    """Of what rounds tell, by telemetry key: means over optimizer steps, of ``wire_ratio`` over rounds.

    Bytes are those of the rounds that counted: what took to begin them anew is in no step's seconds.
    """
    known = [_once(each) for each in told]
    found = {key: rounds.a_step(known, key) for key in _OF_A_STEP}
    ratios = [v for each in known if (v := each.get("wire_ratio")) is not None and math.isfinite(v)]
    found["wire_ratio"] = sum(ratios) / len(ratios) if ratios else None
    if any("wire_bytes" in each and "wire_bytes_across" not in each for each in known):
        found["wire_bytes_across"] = None  # groups of several kinds, of which each sends another share
    return {key: value for key, value in found.items() if value is not None}


def _once(told: rounds.Told) -> rounds.Told:
    """Without what was sent for rounds that were done again."""
    sent_bytes, redone_bytes = told.get("wire_bytes"), told.get("redone_bytes")
    if sent_bytes is None or redone_bytes is None:
        return told
    return {**told, "wire_bytes": sent_bytes - redone_bytes}


def is_exchanging(told: Figures) -> bool:
    """Whether there is somebody to exchange gradients with; one worker sends nothing."""
    return "exchange_s" in told and told.get("step_s", 0.0) > 0.0 and told.get("wire_bytes") != 0.0


def rows(told: Figures) -> list[tuple[str, str, str]]:
    """A heading, a figure and a note each, for a page; empty where nothing is exchanged."""
    if not is_exchanging(told):
        return []
    times = [
        (words.metric(key), words.percent(told[key] / told["step_s"]), words.seconds_fine(told[key]))
        for key in PARTS.values()
        if key in told
    ]
    heading = f"{words.metric('wire_bytes')} a step"
    if "wire_bytes" not in told:
        return [*times, (heading, "–", "nobody counts them here")]
    return [*times, (heading, words.size(told["wire_bytes"]), _of_fp32(told)), *_across_row(told)]


def _across_row(told: Figures) -> list[tuple[str, str, str]]:
    across_bytes = told.get("wire_bytes_across")
    if across_bytes is None:
        return []
    share = f"{words.percent(across_bytes / told['wire_bytes'])} of them, by that worker"
    return [(f"{words.metric('wire_bytes_across')} a step", words.size(across_bytes), share)]


def in_words(*sides: Figures) -> str:
    """Bytes and times of a step, by one scheme or before and after a change; empty where a side tells nothing."""
    if not all(is_exchanging(side) for side in sides):
        return ""
    shares = ", then ".join(words.percent(side["exchange_s"] / side["step_s"]) for side in sides)
    parts = [f"exchanged for {shares} of its time", f"waited {_both(sides, 'exposed_s')} for gradients"]
    if all("encode_s" in side and "decode_s" in side for side in sides):
        parts.append(f"encoded for {_both(sides, 'encode_s')}, decoded for {_both(sides, 'decode_s')}")
    if all("wire_bytes" in side for side in sides):
        parts.insert(0, f"sent {_both(sides, 'wire_bytes')}, {_of_fp32(sides[-1])}".removesuffix(", "))
    if all("wire_bytes_across" in side for side in sides):
        parts.insert(1, f"to other racks {_both(sides, 'wire_bytes_across')}")
    return f"a step {', '.join(parts)}"


def _both(sides: Sequence[Figures], key: str) -> str:
    return ", then ".join(words.metric_value(key, side.get(key)) for side in sides)


def _of_fp32(told: Figures) -> str:
    ratio = told.get("wire_ratio")
    if ratio is None:
        return ""
    if abs(ratio - 1.0) < _ALIKE:
        return "as many as in fp32"
    return (
        f"{words.number(ratio)} times fewer than in fp32" if ratio > 1.0 else f"{words.number(1 / ratio)} times fp32's"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTotals:
    """Of the workers that exchange gradients now: bytes that all of them send a second, where they are counted.

    ``ratio`` is what those would be in fp32, over what they are. ``seconds`` of a step and ``shares`` of its time are
    by ``PARTS``, the mean over workers. NaN where nobody exchanges.
    """

    bytes_per_s: float = 0.0
    ratio: float = math.nan
    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, math.nan))
    shares: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, math.nan))


def totals(jobs: Iterable[tuple[int, Figures]]) -> ExchangeTotals:
    """Of jobs' numbers of workers and their figures."""
    told = [(num, one) for num, one in jobs if num > 0 and is_exchanging(one)]
    sent = [(num * one["wire_bytes"] / one["step_s"], one.get("wire_ratio", 1.0)) for num, one in told if _sends(one)]
    bytes_per_s = sum(each for each, _ in sent)
    return ExchangeTotals(
        bytes_per_s=bytes_per_s,
        ratio=sum(each * ratio for each, ratio in sent) / bytes_per_s if sent else math.nan,
        seconds={part: _mean((num, one.get(key)) for num, one in told) for part, key in PARTS.items()},
        shares={
            part: _mean((num, one[key] / one["step_s"] if key in one else None) for num, one in told)
            for part, key in PARTS.items()
        },
    )


def _sends(told: Figures) -> bool:
    return told.get("wire_bytes", 0.0) > 0.0


def _mean(weighed: Iterable[tuple[int, float | None]]) -> float:
    known = [(num, value) for num, value in weighed if value is not None]
    return sum(num * value for num, value in known) / sum(num for num, _ in known) if known else math.nan

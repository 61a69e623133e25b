"""Whole training steps over slow links: torch's DDP and its bf16 hook against our schemes, four ranks.

A GPT of 5 million parameters and a convolutional net of 2 million, each with a batch that is stated. Everybody has one
step a round, in an order that changes; a ratio is that of one round. Two cores compute for four ranks, so that a step
computes longer than on machines of their own, and what encodes beside it takes its cores: the backward pass of
``paced``, with the parameters of that GPT, takes 0.4 s without any. Of our schemes, in the mean of the ranks: how long
the link was at work for gradients, what of it was waited for, and what could be hidden at most, as backward took no
longer. Needs root.

    python -m tests.benchmarks.whole_steps [50mbit|200mbit|1gbit|racks|loopback ...] [--models NAME ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.exchange import BASE, run
from tests.benchmarks.figures import spread_document
from tests.benchmarks.links import PROFILES

SAMPLES = {"gpt": 8, "conv": 32, "paced": 1}
"""Of each rank."""


def tell(profile: str, model: str, steps: dict[str, list[dict[str, Any]]], given: argparse.Namespace) -> None:
    """A line a contender; the ratios are to DDP in the same round."""
    document: dict[str, object] = {"samples_a_rank": SAMPLES[model]}
    for name, own in steps.items():
        seconds = [step["seconds"] for step in own]
        ratios = [base["seconds"] / step["seconds"] for base, step in zip(steps[BASE], own, strict=True)]
        wire_s, exposed_s, hideable_s = (
            statistics.median(step[key] for step in own) for key in ("wire_s", "exposed_s", "hideable_s")
        )
        hidden = (
            f"; the link works {wire_s * 1e3:.0f} ms, awaited {exposed_s * 1e3:.0f} ms, at most "
            f"{hideable_s * 1e3:.0f} ms could be hidden"
            if wire_s
            else ""
        )
        print(
            f"{profile} {model} {name:28} {statistics.median(seconds) * 1e3:8.1f} ms, "
            f"{statistics.median(ratios):5.2f} times as fast as {BASE} ({min(ratios):.2f} to {max(ratios):.2f}, "
            f"{len(ratios)} rounds){hidden}",
            flush=True,
        )
        told = {"wire_s": wire_s, "exposed_s": exposed_s, "hideable_s": hideable_s}
        document[name] = {"seconds": spread_document(seconds), "ratios": ratios, **told}
    tell_result(given.output, f"whole steps {profile} {model}", ("torch",), document)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("profiles", nargs="*", default=[*PROFILES], choices=[*PROFILES])
    parser.add_argument("--models", nargs="*", default=[*SAMPLES], choices=[*SAMPLES])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for profile in given.profiles:
        for model in given.models:
            flags = [f"--model={model}", f"--samples={SAMPLES[model]}"]
            tell(profile, model, run(profile, given.rounds, "tests.benchmarks.whole_steps_rank", flags), given)


if __name__ == "__main__":
    main()

"""What a scheme does to gradients by its options, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.racks import used
from workers.exchange_options import formats_of, name_of


def in_words(observed: Mapping[str, Any], scheme: str, options: Mapping[str, Any]) -> str:
    """One sentence, of options with every default; empty for a scheme whose name says it all.

    Empty too where what is ``observed`` of a job has links of one level only, and the scheme is not that level's.
    """
    name = name_of(scheme, tuple(options.items()))
    inside, across = formats_of(used(observed, name))
    told = _in_words(scheme, options) if inside == scheme else ""
    if not told or across is None:
        return told
    return f"Inside a rack, {told[0].lower()}{told[1:]} Between racks sums travel as {across}."


def _in_words(scheme: str, options: Mapping[str, Any]) -> str:
    match scheme:
        case "topk":
            return _of_topk(options)
        case "powersgd":
            return f"By powersgd each matrix travels as two thin factors of rank {options['rank']}."
        case "local_steps":
            return _of_local_steps(options)
        case _:
            return ""


def _of_topk(options: Mapping[str, Any]) -> str:
    fraction, quantise = options["fraction"], options["quantise"]
    values = "their values as they are" if quantise == "none" else f"their values as {quantise}"
    told = f"By topk the largest {100 * fraction:g} % of gradients travel, {values}"
    if momentum := options.get("momentum"):
        told += f", chosen once each worker has added momentum of {momentum}"
    if warm_up := options.get("warm_up"):
        told += f"; in the job's first {warm_up} steps more of them do, from a quarter down to that"
    return f"{told}."


def _of_local_steps(options: Mapping[str, Any]) -> str:
    lr, momentum = options["outer_lr"], options["outer_momentum"]
    if (lr, momentum) == (1.0, 0.0):
        return "After steps of their own all workers take the mean of what they came to."
    return (
        f"After steps of their own all workers take one step by the mean of what they changed, with outer_lr {lr} and "
        f"outer_momentum {momentum}."
    )

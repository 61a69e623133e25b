"""What a job's model of its throughput tells, as rows and pictures: by number of workers and by batch. Pure.

Ranges are two standard deviations of the logarithm wide on either side. Boxes are stretched to the width that there is,
so nothing in them is text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from service import words

WIDTH, HEIGHT = 1000.0, 100.0
_ROOM = 6.0
_MOST_CUT = 2.0
"""A range that ends above so many times the largest value is cut there, or no value would be told from another."""


def sizes_view(job: Mapping[str, Any]) -> dict[str, Any]:
    """``rows``, one a number of workers; or ``missing``, why there are none."""
    told = (job.get("observed") or {}).get("forecast")
    if not told:
        begun = job["workers"]["current"]
        why = "a few more steps at this size are to be measured first" if begun else "nothing trains now"
        return {"rows": [], "missing": f"How fast other sizes would be is not known yet: {why}."}
    top = _top(told["sizes"])
    rows = [
        {
            **_row(each, top),
            "workers": each["num_workers"],
            "is_now": each["num_workers"] == told["num_workers"],
            "valuetext": f"{words.plural(each['num_workers'], 'worker')}, {_in_words(each)}",
        }
        for each in told["sizes"]
    ]
    return {"rows": rows, "missing": ""}


def batches_view(told: Mapping[str, Any] | None, asked: int, noise_scale: float | None) -> dict[str, Any] | None:
    """Throughput by batch, modelled and measured, and what it comes to in progress; None while nothing is known.

    Progress is in samples a second of the batch ``asked`` for, by the noise scale; None while that is not known.
    """
    if not told:
        return None
    top = _top(told["batches"])
    rows = []
    for each in told["batches"]:
        batch = each["global_batch"]
        worth = None if noise_scale is None else (noise_scale + asked) / max(noise_scale + batch, 1e-9)
        rows.append(
            {
                **_row(each, top),
                "batch": batch,
                "is_now": batch == told["global_batch"],
                "worth": worth,
                "progress": None if worth is None else each["samples_per_s"] * worth,
            }
        )
    return {"rows": rows, "workers": told["num_workers"], "chart": _chart(told["batches"], rows, top)}


def present(told: Mapping[str, Any] | None) -> str:
    """What the model says of the throughput at the size and batch in force, with its range."""
    here = [each for each in told["sizes"] if each["num_workers"] == told["num_workers"]] if told else []
    return f"{words.number(here[0]['samples_per_s'])} ({_range(here[0])})" if here else "not known yet"


def _row(each: Mapping[str, Any], top: float) -> dict[str, Any]:
    low, high = _bounds(each)
    return {
        "told": words.number(each["samples_per_s"]),
        "range": _range(each),
        "measured": each["measured"],
        "num_steps": each["num_steps"],
        "bar": _across(each["samples_per_s"], top),
        "low": _across(low, top),
        "high": _across(high, top),
        "seen": None if each["measured"] is None else _across(each["measured"], top),
    }


def _in_words(each: Mapping[str, Any]) -> str:
    told = f"about {words.number(each['samples_per_s'])} samples a second, {_range(each)}"
    return told if each["measured"] is not None else f"{told}, never tried"


def _bounds(each: Mapping[str, Any]) -> tuple[float, float]:
    middle, factor = float(each["samples_per_s"]), math.exp(min(50.0, 2 * each["error"]))
    return middle / factor, middle * factor


def _range(each: Mapping[str, Any]) -> str:
    low, high = _bounds(each)
    return f"{words.number(low)} to {words.number(high)}"


def _top(rows: Sequence[Mapping[str, Any]]) -> float:
    most = max(max(float(each["samples_per_s"]), each["measured"] or 0.0) for each in rows)
    return min(max(_bounds(each)[1] for each in rows), _MOST_CUT * most)


def _across(value: float, top: float) -> str:
    return f"{WIDTH * min(1.0, value / top):.1f}"


def _chart(told: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], top: float) -> dict[str, Any] | None:
    """Batches across by factors, samples a second upwards from 0; None where there is one batch only."""
    if len(told) < 2:
        return None
    low, high = (math.log(told[at]["global_batch"]) for at in (0, -1))

    def place(batch: int, value: float) -> str:
        x = _ROOM + (WIDTH - 2 * _ROOM) * (math.log(batch) - low) / (high - low)
        return f"{x:.1f} {HEIGHT - (HEIGHT - _ROOM) * min(1.0, value / top):.1f}"

    def path(values: Sequence[tuple[int, float]]) -> str:
        return "M" + "L".join(place(*each) for each in values)

    batches = [each["global_batch"] for each in told]
    bounds = [_bounds(each) for each in told]
    upper = [(batch, bound[1]) for batch, bound in zip(batches, bounds, strict=True)]
    lower = [(batch, bound[0]) for batch, bound in zip(batches, bounds, strict=True)]
    progress = [(row["batch"], row["progress"]) for row in rows if row["progress"] is not None]
    return {
        "band": path([*upper, *lower[::-1]]) + "Z",
        "line": path([(each["global_batch"], each["samples_per_s"]) for each in told]),
        "dots": [
            f"M{place(each['global_batch'], each['measured'])}h0" for each in told if each["measured"] is not None
        ],
        "progress": path(progress) if progress else "",
        "top": words.number(top),
        "left": words.count(batches[0]),
        "right": f"{words.count(batches[-1])} samples a step",
    }

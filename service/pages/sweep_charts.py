"""Pictures of a sweep as numbers for SVG: the best so far, learning rate against batch, parallel coordinates. Pure.

Boxes of the first two are stretched to the width of the page, so nothing in them is text; the axes of parallel
coordinates are drawn to scale, and scroll where the page is narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service import sweep_words, words
from service.documents import Document
from service.pages.heat import NUM_LEVELS
from tuning.verdicts import score

WIDTH, HEIGHT = 1000.0, 100.0
ROOM = 4.0
"""Between the box's edge and what is drawn, in its units."""

MAX_DRAWN = 300
"""Of trials, the best."""

GAP, LEAST_WIDTH, SIDE = 128, 832, 72
TOP, BOTTOM, FULL_HEIGHT = 48, 232, 256
MAX_NAME, MAX_TICKS = 20, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """``at`` gives the share of the height for a value, None where it has no place; ``ticks`` are such shares."""

    name: str
    ticks: tuple[tuple[float, str], ...]
    at: Callable[[Any], float | None]
    scale: Mapping[str, Any]


def levels(trials: Sequence[Document], mode: Any) -> dict[int, int]:
    """How good each trial with a value is among the others: 0 the worst eighth, ``NUM_LEVELS`` - 1 the best."""
    ranked = sorted((t for t in trials if value_of(t) is not None), key=lambda t: score(value_of(t) or 0.0, mode))
    return {trial["number"]: n * NUM_LEVELS // len(ranked) for n, trial in enumerate(ranked)}


def value_of(trial: Document) -> float | None:
    """Its result, else what it reported last."""
    value: float | None = trial["value"] if trial["value"] is not None else trial["last_value"]
    return value


def curve_view(report: Document) -> dict[str, Any] | None:
    """The best value after each trial that ended; None before any is complete."""
    points = [point for point in report["best_so_far"] if point["best"] is not None]
    if not points:
        return None
    metric, values = report["metric"], [point["best"] for point in points]
    low, high = min(values), max(values)
    across = _scaled(0, max(1, len(points) - 1), WIDTH, ROOM)
    up = _scaled(low, high, HEIGHT, ROOM)
    path = f"M{across(0):.1f} {HEIGHT - up(values[0]):.1f}"
    changes = [n for n in range(1, len(values)) if values[n] != values[n - 1]]
    path += "".join(f"H{across(n):.1f}V{HEIGHT - up(values[n]):.1f}" for n in changes)
    better = {each["trial"]: each for each in report["improvements"]}
    marks = [
        {
            "x": f"{across(n):.1f}",
            "y": f"{HEIGHT - up(point['best']):.1f}",
            "told": _told(better[point["trial"]], metric),
        }
        for n, point in enumerate(points)
        if point["trial"] in better
    ]
    last = points[-1]
    return {
        "path": path + f"H{WIDTH - ROOM:.1f}",
        "marks": marks,
        "low": words.metric_value(metric, low),
        "high": words.metric_value(metric, high),
        "begin": f"trial {points[0]['trial']}",
        "end": f"{words.plural(len(report['best_so_far']), 'trial')}, {words.number(last['samples'])} samples",
    }


def _told(better: Document, metric: str) -> str:
    gain = "" if better["gain"] is None else f", better by {words.number(better['gain'])}"
    cost = words.duration(better["worker_s"])
    return f"Trial {better['trial']}: {words.metric_value(metric, better['value'])}{gain}, for {cost} of a worker"


def map_view(report: Document, level_of: Mapping[int, int]) -> dict[str, Any] | None:
    """Learning rate (across) against global batch, both by factors; None where neither was searched."""
    points = report["lr_batch"]
    lrs, batches = [p["lr"] for p in points], [p["global_batch"] for p in points]
    if len({*zip(lrs, batches, strict=True)}) < 2 or min(lrs) <= 0:
        return None
    across = _scaled(math.log(min(lrs)), math.log(max(lrs)), WIDTH, 4 * ROOM)
    up = _scaled(math.log(min(batches)), math.log(max(batches)), HEIGHT, 3 * ROOM)
    dots = [
        {
            "x": f"{across(math.log(p['lr'])):.1f}",
            "y": f"{HEIGHT - up(math.log(p['global_batch'])):.1f}",
            "level": level_of.get(p["trial"]),
            "told": _point_told(p, report["metric"]),
        }
        for p in sorted(points, key=lambda p: level_of.get(p["trial"], -1))[-MAX_DRAWN:]
    ]
    ends = {"left": words.number(min(lrs)), "right": words.number(max(lrs))}
    return {"dots": dots, **ends, "bottom": str(min(batches)), "top": str(max(batches))}


def _point_told(point: Document, metric: str) -> str:
    value = words.metric_value(metric, point["value"]) if point["value"] is not None else "no value"
    return f"Trial {point['trial']}: {value} at lr {words.number(point['lr'])}, batch {point['global_batch']}"


def parallel_view(
    spec: Mapping[str, Any], trials: Sequence[Document], level_of: Mapping[int, int]
) -> dict[str, Any] | None:
    """One axis a parameter and one for the metric, better values up; None before any trial has a value."""
    known = [trial for trial in trials if trial["number"] in level_of]
    if not known:
        return None
    shown = sorted(known, key=lambda trial: level_of[trial["number"]])[-MAX_DRAWN:]
    axes = [*(_axis(path, each) for path, each in spec["space"].items()), _metric_axis(spec, shown)]
    width = max(LEAST_WIDTH, 2 * SIDE + GAP * (len(axes) - 1))
    xs = [SIDE + n * (width - 2 * SIDE) / (len(axes) - 1) for n in range(len(axes))]
    return {
        "axes": [_axis_view(n, axis, x) for n, (axis, x) in enumerate(zip(axes, xs, strict=True))],
        "lines": [_line(trial, axes, xs, spec, level_of[trial["number"]]) for trial in shown],
        "width": width,
        "height": FULL_HEIGHT,
        "left_out": _left_out(len(trials) - len(known), len(known) - len(shown)),
    }


def _left_out(num_without_value: int, num_beyond: int) -> str:
    """What is not drawn, as a sentence; empty where nothing is left out."""
    parts = [f"{words.plural(num_without_value, 'trial')} without a value"] if num_without_value else []
    parts += [f"{words.plural(num_beyond, 'trial')} beyond the best {MAX_DRAWN}"] if num_beyond else []
    return f"Not drawn: {', '.join(parts)}." if parts else ""


def _axis_view(number: int, axis: Axis, x: float) -> dict[str, Any]:
    name = axis.name if len(axis.name) <= MAX_NAME else f"…{axis.name[1 - MAX_NAME :]}"
    ticks = [{"y": f"{_y(share) + 4:.0f}", "word": word} for share, word in axis.ticks]
    place = {"number": number, "x": f"{x:.0f}", "left": f"{x - 16:.0f}", "top": TOP, "bottom": BOTTOM}
    return {
        **place,
        "height": BOTTOM - TOP,
        "name": axis.name,
        "short": name,
        "ticks": ticks,
        "scale": dict(axis.scale),
    }


def _line(
    trial: Document, axes: Sequence[Axis], xs: Sequence[float], spec: Mapping[str, Any], level: int
) -> dict[str, Any]:
    """A parameter that is not active in this trial is passed over."""
    given = [*(trial["params"].get(path, _MISSING) for path in spec["space"]), value_of(trial)]
    shares = [None if value is _MISSING else axis.at(value) for axis, value in zip(axes, given, strict=True)]
    points = [f"{x:.0f},{_y(share):.1f}" for x, share in zip(xs, shares, strict=True) if share is not None]
    told = f"Trial {trial['number']}: {words.metric_value(spec['metric'], given[-1])} at "
    return {
        "number": trial["number"],
        "points": " ".join(points),
        "at": " ".join("-" if share is None else f"{share:.3f}" for share in shares),
        "level": level,
        "told": told + sweep_words.params(trial["params"]),
    }


_MISSING = object()


def _y(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _axis(path: str, given: Mapping[str, Any]) -> Axis:
    if (options := given.get("choice")) is not None:
        places = {repr(option): n / max(1, len(options) - 1) for n, option in enumerate(options)}
        ticks = [(places[repr(option)], sweep_words.value(option)) for option in options]
        some = ticks if len(ticks) <= MAX_TICKS else [ticks[0], ticks[-1]]
        texts = [sweep_words.value(option) for option in options]
        return Axis(name=path, ticks=tuple(some), at=lambda v: places.get(repr(v)), scale={"options": texts})
    bounds = given.get("uniform") or given.get("log_uniform") or given["int"]
    return _numbers(path, bounds[0], bounds[1], is_log=given.get("log_uniform") is not None or bool(given.get("log")))


def _metric_axis(spec: Mapping[str, Any], trials: Sequence[Document]) -> Axis:
    values = [value for trial in trials if (value := value_of(trial)) is not None]
    worst, best = sorted((min(values), max(values)), key=lambda value: score(value, spec["mode"]))
    metric = spec["metric"]
    ticks = ((0.0, words.metric_value(metric, worst)), (1.0, words.metric_value(metric, best)))
    axis = _numbers(metric, worst, best, is_log=False)
    return Axis(name=metric, ticks=ticks if worst != best else ticks[1:], at=axis.at, scale=axis.scale)


def _numbers(name: str, bottom: float, top: float, *, is_log: bool) -> Axis:
    def at(value: Any) -> float:
        if bottom == top:
            return 1.0
        if is_log:
            return math.log(value / bottom) / math.log(top / bottom)
        return abs(float((value - bottom) / (top - bottom)))

    ticks = ((0.0, words.number(bottom)), (1.0, words.number(top)))
    return Axis(name=name, ticks=ticks, at=at, scale={"low": bottom, "high": top, "log": is_log})


def _scaled(low: float, high: float, size: float, room: float) -> Callable[[float], float]:
    if high <= low:
        return lambda _: size / 2
    return lambda value: room + (value - low) / (high - low) * (size - 2 * room)

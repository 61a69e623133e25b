"""What each optimisation did to a job: its steps before a change against its steps after it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import Any, TypeAlias

from service import exchange, rounds
from service.documents import Document
from service.loss_evidence import loss_in_words
from service.records import Point, TimelineEntry
from service.words import number
from workers.exchange_options import ExchangeSpec, filled, formats_of, name_of, used_over
from workers.measures import COMPARED
from workers.medians import relative_error
from workers.rack_words import one_level_in_words

KINDS = frozenset({"resize", "batch", "precision", "exchange"})
"""Rows of a timeline that tell of a change to what a step costs."""

NUM_POINTS = 64
_NUM_SETTLING = 2
_LEAST_POINTS = 3
_MEASURE = "samples_per_s"
_VERDICT = "probation"
_NUM_JUDGED = "num_steps"
_COMPARED: Mapping[str, str] = {
    "workers": "Workers",
    "global_batch": "Global batch",
    "parts": "Shares",
    "scheme": "Gradients",
}
"""What a row says of both sides, in the order in which it names a change."""

_ON_TRIAL = frozenset({"workers", "global_batch", "parts", "scheme"})
"""What is told as it was judged, where it was: of the steps before a change many may be from before what caused it."""

_Numbers: TypeAlias = Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a change came into force: after ``samples`` were drawn where that is known, else by the clock.

    ``time`` is when it was decided, in Unix seconds; until all workers have agreed, steps are as before.
    """

    time: float
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Near:
    """Points of one lineage before a change came into force and since, by growing round."""

    before: Sequence[Point]
    after: Sequence[Point]


def moment_of(row: TimelineEntry, global_size: int) -> Moment:
    """When a row's change came into force; its step is that of the first round under it once its price is known."""
    return Moment(time=row.time, samples=None if row.cost_s is None else row.step * global_size)


def is_judged(row: TimelineEntry) -> bool:
    """Whether a row tells of a change whose worth can be measured; a turn back in a trial is a part of another's."""
    is_change = _changed(row) is not None or _in_turns(row) is not None
    return row.kind in KINDS and is_change and not row.after.get("is_again")


def is_asked(spec: ExchangeSpec) -> bool:
    """Whether a job asks for a way to exchange gradients otherwise than as they are."""
    return spec.scheme != "auto" and name_of(spec.scheme, filled(spec.scheme, spec.options)) != "none"


def sections(rows: Sequence[TimelineEntry], near: Mapping[int, Near]) -> list[Document]:
    """One for each row that is judged, oldest first; ``near`` has what was measured around a row, by its ``seq``.

    Throughput is compared, times what a sample is worth where a batch was changed by its noise scale: as it was judged
    where ``rows`` have that, so that report and timeline tell the same. Else medians of at most ``NUM_POINTS`` steps a
    side between the change before, or the loss of a worker, and the one after, the first two after a change left out.
    ``low`` and ``high`` are two standard errors of the ratio of two medians away from the gain, from their median
    absolute deviations. None where there are too few steps, or where a trial left it open.
    """
    begins = {
        row.seq: near[row.seq].after[0].round
        for row in rows
        if row.kind in KINDS and _changed(row) is not None and row.seq in near and near[row.seq].after
    }
    return [
        _section(row, near.get(row.seq, Near((), ())), _span(row, begins), _verdict(row, rows[at + 1 :]))
        for at, row in enumerate(rows)
        if is_judged(row)
    ]


def _span(row: TimelineEntry, begins: Mapping[int, int]) -> tuple[float, float]:
    """From the first round of the change before a row to that of the one after it; ``begins`` has them by ``seq``."""
    earlier = [first for seq, first in begins.items() if seq < row.seq]
    later = [first for seq, first in begins.items() if seq > row.seq]
    return max(earlier, default=float("-inf")), min(later, default=float("inf"))


def _section(row: TimelineEntry, near: Near, span: tuple[float, float], verdict: TimelineEntry | None) -> Document:
    expected = (verdict or row).after.get("expected_gain")
    about: Document = {"step": row.step, "kind": row.kind, "actor": row.actor, "expected": expected}
    turns = _in_turns(row)
    if turns is not None:
        return {**about, **_of_turns(row, *turns)}
    key = _changed(row)
    assert key is not None
    before = (row if verdict is None else verdict).before[key]
    about["name"] = f"{_COMPARED[key]} {_told(before)} → {_told(row.after[key])}"
    sides = _sides(row, key, near, span)
    told = [_travel(sides), _loss(row.after[key], sides)] if key == "scheme" else []
    more = [part for part in told if part]
    return {**about, **(_of_points(row, sides, more) if verdict is None else _of_verdict(row, verdict, more))}


def _sides(row: TimelineEntry, key: str, near: Near, span: tuple[float, float]) -> tuple[list[Point], list[Point]]:
    """The steps before a change and those after it that were trained as it says."""
    before_points = _of_one_size([p for p in near.before if p.round >= span[0]][::-1], key)
    after_points = _of_one_size([p for p in near.after if p.round < span[1]], key)
    return (
        _alike(before_points[::-1], key, row.before.get(key)),
        _alike(after_points, key, row.after.get(key))[_NUM_SETTLING:],
    )


def _of_points(row: TimelineEntry, sides: Sequence[Sequence[Point]], more: Sequence[str]) -> Document:
    before, after = map(_speeds, sides)
    worth = _worth(row)
    return {**_compared(before, after, worth), "evidence": _evidence(row, sides, worth, more)}


def _verdict(row: TimelineEntry, later: Sequence[TimelineEntry]) -> TimelineEntry | None:
    """The row of what a change was judged to bring; None where it was not, before another change of the same.

    Newcomers may come one by one: then all of them were judged together, with the last change. While a scheme is on
    trial the one before may be in force again.
    """
    key = _changed(row)
    if key not in _ON_TRIAL:
        return None
    found = next((other for other in later if _changed(other) == key and not other.after.get("is_again")), None)
    if found is None or found.kind != _VERDICT or _NUM_JUDGED not in found.after:
        return None
    return found if found.after[key] == row.after[key] else None


def _of_verdict(row: TimelineEntry, verdict: TimelineEntry, more: Sequence[str]) -> Document:
    before, found = verdict.before[_MEASURE], verdict.after
    gain, doubt, num_steps, worth = found["gain"], 2 * found["error"], found[_NUM_JUDGED], _worth(verdict)
    is_judged = found.get("is_judged", True)
    told = f"as {'judged' if is_judged else 'seen'} on trial by {num_steps} steps, those next to the change: "
    told += f"{number(before)} and {number(found[_MEASURE])} samples a second{_worth_in_words(worth)}"
    return {
        "before": before,
        "after": found[_MEASURE],
        "gain": gain if is_judged else None,
        "low": max(0.0, gain - doubt) if is_judged else None,
        "high": gain + doubt if is_judged else None,
        "num_measured": num_steps,
        "evidence": "; ".join((told, *([verdict.reason] if "scheme" in found else []), *more, row.reason)),
    }


def _travel(sides: Sequence[Sequence[Point]]) -> str:
    return exchange.in_words(*(exchange.figures(p.values for p in side) for side in sides))


def asked_section(asked: ExchangeSpec, newest: Sequence[Point], racks: Sequence[int] = ()) -> Document | None:
    """What an exchange that a job itself asks for does to its ``newest`` steps; None where nothing is exchanged.

    It has no gain: the job has no steps without it. ``racks`` are the numbers of workers' racks, empty where nobody
    looked for any.
    """
    points = [p for p in newest if exchange.is_exchanging(p.values)]
    if not points:
        return None
    scheme = name_of(asked.scheme, filled(asked.scheme, asked.options))
    speeds = _speeds(_alike(points, "scheme", scheme))
    why = "the job asks for it and has no steps without: `communication: auto` would try both"
    used, apart = (used_over(scheme, racks), one_level_in_words(scheme, racks)) if racks else (scheme, "")
    options = asked.options if formats_of(used)[0] == asked.scheme else {}
    evidence = (why, apart, _travel([points]), loss_in_words(used, options))
    return {
        "step": 0,
        "kind": "exchange",
        "actor": "user",
        "expected": None,
        "name": f"Gradients {used}, {f'where {scheme} is' if apart else 'as'} asked for",
        **_compared((), speeds, 1.0),
        "evidence": "; ".join(filter(None, evidence)),
    }


def _loss(scheme: str, sides: Sequence[Sequence[Point]]) -> str:
    """What class of loss a scheme is of, and the losses beside the change where steps of both sides are there.

    That a curve falls is no merit of a scheme: whether it costs anything paired runs show, and this that it did not
    break the job.
    """
    before, after = ([v for p in side if (v := p.values.get("loss")) is not None] for side in sides)
    told = f"; median losses {number(median(before))} and {number(median(after))}" if before and after else ""
    return f"{loss_in_words(scheme)}{told}"


def _of_one_size(points: Sequence[Point], key: str) -> Sequence[Point]:
    """Those from the first of ``points``, which is next to the change, up to where a worker was lost or came."""
    if key == "workers":
        return points
    return list(takewhile(lambda p: p.values.get("workers") == points[0].values.get("workers"), points))


def _worth(row: TimelineEntry) -> float:
    """What a sample is worth after a change of the batch, in samples before it, by the noise scale told with it."""
    before, after, noise = row.before.get("global_batch"), row.after.get("global_batch"), row.after.get("noise_scale")
    return (noise + before) / (noise + after) if before and after and noise is not None else 1.0


def _changed(row: TimelineEntry) -> str | None:
    """What the row says to be another than before; None where it says nothing of both sides."""
    for key in _COMPARED:
        if row.before.get(key) and row.after.get(key) and row.before[key] != row.after[key]:
            return key
    return None


def _in_turns(row: TimelineEntry) -> tuple[str, Mapping[str, Any]] | None:
    """What a worker chose, in place of what, and what both took in rounds that took turns."""
    told, before, after = row.after.get(COMPARED), row.before, row.after
    if told is None:
        return None
    if "loaders" in after:
        return f"Samples read: {before['loaders']} → {after['loaders']}", told
    if "micro_tokens" in after:
        return f"Passes of up to {before['micro_tokens']} → {after['micro_tokens']} padded tokens", told
    return f"Micro-batch {after['micro_size']} instead of {max(map(int, after['seconds_a_sample']))}", told


def _of_turns(row: TimelineEntry, name: str, told: Mapping[str, Any]) -> Document:
    gain, errors, is_samples = told["before_s"] / told["after_s"], told["errors"], told["unit"] == "sample"
    doubt = None if errors is None else 2 * (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    return {
        "name": name,
        "before": 1 / told["before_s"] if is_samples else None,
        "after": 1 / told["after_s"] if is_samples else None,
        "gain": gain,
        "low": None if doubt is None else gain * max(0.0, 1 - doubt),
        "high": None if doubt is None else gain * (1 + doubt),
        "num_measured": told["num_rounds"],
        "evidence": f"one worker's own time, in rounds that took turns: {row.reason}",
    }


def _alike(points: Sequence[Point], key: str, value: Any) -> list[Point]:
    """Those with a throughput that were trained as one side of the change says."""
    alike = [p for p in points if key not in p.values or p.values[key] == value]
    # While micro-batches are on trial steps are slower than before and after. By length they differ in every step.
    sizes = [None if "useful_tokens" in p.values else p.values.get("micro_batch") for p in alike]
    settled = Counter(sizes).most_common(1)
    alike = [p for p, size in zip(alike, sizes, strict=True) if size == settled[0][0]]
    return [p for p in alike if p.values.get(_MEASURE, 0.0) > 0.0]


def _compared(before: _Numbers, after: _Numbers, worth: float) -> Document:
    is_enough = min(len(before), len(after)) >= _LEAST_POINTS
    gain = median(after) / median(before) * worth if is_enough else None
    doubt = 2 * (relative_error(before) ** 2 + relative_error(after) ** 2) ** 0.5 if is_enough else 0.0
    return {
        "before": median(before) if before else None,
        "after": median(after) if after else None,
        "gain": gain,
        "low": None if gain is None else gain * max(0.0, 1 - doubt),
        "high": None if gain is None else gain * (1 + doubt),
        "num_measured": len(before) + len(after),
    }


def _speeds(points: Sequence[Point]) -> _Numbers:
    return [p.values[_MEASURE] for p in points]


def _evidence(row: TimelineEntry, sides: Sequence[Sequence[Point]], worth: float, more: Sequence[str]) -> str:
    before, after = map(_speeds, sides)
    what = "steps" if rounds.most_steps(p.values for side in sides for p in side) == 1 else "rounds"
    counted = f"{len(before)} {what} before and {len(after)} after"
    if min(len(before), len(after)) < _LEAST_POINTS:
        return f"{counted}, which is too few to tell; {row.reason}"
    told = f"medians of {counted}: {number(median(before))} and {number(median(after))} samples a second"
    return "; ".join((f"{told}{_worth_in_words(worth)}", *more, row.reason))


def _worth_in_words(worth: float) -> str:
    return "" if worth == 1.0 else f", each worth {worth:.2f} times as much"


def _told(value: Any) -> str:
    return " and ".join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)

"""The System tab's heat map: ranks down, time across, one quantity by strength. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from service import words
from service.pages.job import address
from service.rank_history import AttemptSpan, total
from service.times import rfc3339
from workers.measures import RankSpan

NUM_LEVELS = 8
MAX_COLUMNS = 48
MIN_COLUMNS = 12
MAX_CELLS = 960
MAX_RANKS = 64
LEAST_RANGE = 0.1
"""A range narrower than this part of the greatest value is no difference that one should see."""

PEAK = 1.2
"""A cell this many times above the median of its time is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a cell may show; ``key`` is the telemetry key whose unit its values have, empty for a share."""

    word: str
    told: str
    key: str
    value: Callable[[RankSpan], float | None]


QUANTITIES: Mapping[str, Quantity] = {
    "busy": Quantity(
        word="Busy",
        told="The share of a step in which the rank works itself, rather than waits for others.",
        key="",
        value=lambda s: (s.data_s + s.compute_s + s.optimizer_s) / s.step_s if s.step_s else None,
    ),
    "data": Quantity(
        word="Data",
        told="Seconds a round (a step, or the local steps until the next exchange) that the rank waits for its data.",
        key="data_s",
        value=lambda s: _mean(s.data_s, s),
    ),
    "exchange": Quantity(
        word="Exchange",
        told="Seconds that the rank waits for each exchange of gradients, mostly for slower ranks.",
        key="exposed_s",
        value=lambda s: _mean(s.exposed_s, s),
    ),
    "memory": Quantity(
        word="Memory",
        told="The most memory that the rank has held.",
        key="memory_bytes",
        value=lambda s: float(s.memory_bytes) or None,
    ),
    "gpu": Quantity(
        word="GPU", told="How busy the rank's GPU is.", key="gpu_utilisation", value=lambda s: s.gpu_utilisation
    ),
}


def _mean(seconds: float, span: RankSpan) -> float:
    return seconds / span.num_rounds


def heat_view(job_id: str, found: Sequence[AttemptSpan], chosen: str) -> dict[str, Any] | None:
    """Rows of cells with their words, and the choice of quantities; None where no rank has told anything."""
    spans = [each.span for each in found]
    if not spans:
        return None
    shown = [n for n in QUANTITIES if n != "gpu" or any(s.gpu_utilisation is not None for s in spans)]
    name = chosen if chosen in shown else shown[0]
    all_ranks = sorted({s.rank for s in spans})
    ranks = all_ranks[:MAX_RANKS]
    width_s, cells = _grid(spans, max(MIN_COLUMNS, min(MAX_COLUMNS, MAX_CELLS // len(ranks))))
    begins = sorted({begin for _, begin in cells})
    heat = _Heat(QUANTITIES[name], cells)
    return {
        "name": name,
        "told": heat.quantity.told,
        "choices": [(n, QUANTITIES[n].word, address(job_id, "system", heat=n)) for n in shown],
        "columns": [_column(begin, before, width_s) for begin, before in zip(begins, [None, *begins], strict=False)],
        "rows": [heat.row(rank, begins) for rank in ranks],
        "least": heat.words(heat.least),
        "most": heat.words(heat.most),
        "levels": range(NUM_LEVELS),
        "began_at": rfc3339(begins[0]),
        "ended_at": rfc3339(begins[-1] + width_s),
        "width": words.duration(width_s),
        "num_left_out": len(all_ranks) - len(ranks),
    }


def _grid(spans: Sequence[RankSpan], max_columns: int) -> tuple[int, dict[tuple[int, int], RankSpan]]:
    """Spans by rank and begin on one grid, whose width in seconds doubles until there are few enough columns."""
    width_s = max(s.width_s for s in spans)
    while len({s.begin // width_s for s in spans}) > max_columns:
        width_s *= 2
    grouped: dict[tuple[int, int], list[RankSpan]] = {}
    for span in spans:
        grouped.setdefault((span.rank, span.begin // width_s * width_s), []).append(span)
    return width_s, {key: total(group) for key, group in grouped.items()}


def _column(begin: int, before: int | None, width_s: int) -> dict[str, Any]:
    gap_s = 0 if before is None else begin - before - width_s
    return {"at": rfc3339(begin), "gap": words.duration(gap_s) if gap_s > 0 else ""}


class _Heat:
    """One quantity of all cells, which are keyed by rank and begin."""

    def __init__(self, quantity: Quantity, cells: Mapping[tuple[int, int], RankSpan]) -> None:
        self.quantity = quantity
        self._cells = cells
        self._values = {key: value for key, span in cells.items() if (value := quantity.value(span)) is not None}
        self.least = min(self._values.values(), default=0.0)
        self.most = max(self._values.values(), default=0.0)
        beside: dict[int, list[float]] = {}
        for (_, begin), value in self._values.items():
            beside.setdefault(begin, []).append(value)
        self._peaks = {begin: PEAK * median(values) for begin, values in beside.items() if len(values) > 1}

    def row(self, rank: int, begins: Sequence[int]) -> dict[str, Any]:
        """A rank's cells, None where it told nothing, and its value over all of them."""
        own = total([span for (of_rank, _), span in self._cells.items() if of_rank == rank])
        return {
            "rank": rank,
            "mean": self.words(self.quantity.value(own)),
            "cells": [self._cell(rank, begin) for begin in begins],
        }

    def _cell(self, rank: int, begin: int) -> dict[str, Any] | None:
        value = self._values.get((rank, begin))
        if value is None:
            return None
        return {
            "level": self._level(value),
            "words": self.words(value),
            "worker_id": self._cells[rank, begin].worker_id,
            "is_peak": value > self._peaks.get(begin, math.inf),
        }

    def _level(self, value: float) -> int:
        """The strength of a cell, from 0 up to ``NUM_LEVELS`` - 1."""
        span = max(self.most - self.least, LEAST_RANGE * self.most)
        return min(NUM_LEVELS - 1, math.floor((value - self.least) / span * NUM_LEVELS)) if span else 0

    def words(self, value: float | None) -> str:
        """A value with its unit."""
        key = self.quantity.key
        return words.metric_value(key, value) if key else words.percent(value)

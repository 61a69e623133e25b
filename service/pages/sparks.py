"""The small curves in the list of jobs: computed from telemetry, remembered, bounded in time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from service.documents import Document
from service.pages.jobs import NUM_SPARK_POINTS, main_metric
from service.pages.source import PageSource

MAX_REMEMBERED = 2000
BUDGET_S = 0.3
FRESH_S = 10.0


@dataclass(frozen=True, slots=True)
class _Curve:
    etag: str
    made_s: float
    values: tuple[float, ...]


class Sparks:
    """The main metric's course of each job.

    Reading a long history costs tens of milliseconds, so one request spends at most ``BUDGET_S`` on
    curves that it does not have; the others follow with the next one.
    """

    def __init__(self, source: PageSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._curves: OrderedDict[str, _Curve] = OrderedDict()

    async def of(self, jobs: Sequence[Document]) -> Mapping[str, Sequence[float]]:
        """Values by job id, oldest first, where there are any."""
        begun_s = self._clock()
        for job in jobs:
            if self._clock() - begun_s > BUDGET_S:
                break
            await self._refresh(job)
        return {job["id"]: self._curves[job["id"]].values for job in jobs if job["id"] in self._curves}

    async def _refresh(self, job: Document) -> None:
        job_id, now_s = job["id"], self._clock()
        known = self._curves.get(job_id)
        if known is not None and (known.etag == job["etag"] or now_s - known.made_s < FRESH_S):
            self._curves.move_to_end(job_id)
            return
        if not job["attempt"]:
            return
        key = main_metric(job)
        found = await self._source.metrics(job_id, [key], NUM_SPARK_POINTS)
        values = tuple(v for point in found["points"] if (v := point["values"].get(key)) is not None)
        self._curves[job_id] = _Curve(job["etag"], now_s, values)
        if len(self._curves) > MAX_REMEMBERED:
            self._curves.popitem(last=False)

"""What the pages read and do, through the same use cases as the REST interface; documents as in the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from service.configurations import Configurations
from service.cost import Prices
from service.documents import Document, job_document
from service.files import Files
from service.jobs import JobPage, Jobs, ListQuery
from service.logs import LogText
from service.nodes import Nodes
from service.overview import Overview
from service.records import JobRow
from service.schedules import Schedules
from service.services import Services
from service.states import JobState, Verb
from service.sweeps import Sweeps
from service.telemetry import LogQuery, MetricsQuery, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSource:
    """The use cases; what they raise goes through to the page's route."""

    jobs: Jobs
    sweeps: Sweeps
    configurations: Configurations
    schedules: Schedules
    telemetry: Telemetry
    files: Files
    overview: Overview
    nodes: Nodes
    prices: Prices
    clock: Callable[[], float]

    @classmethod
    def of(cls, services: Services) -> PageSource:
        """The use cases that pages need, of all there are."""
        return cls(
            jobs=services.jobs,
            sweeps=services.sweeps,
            configurations=services.configurations,
            schedules=services.schedules,
            telemetry=services.telemetry,
            files=services.files,
            overview=services.overview,
            nodes=services.nodes,
            prices=services.prices,
            clock=services.clock,
        )

    async def listed(self, query: ListQuery) -> tuple[list[Document], str | None]:
        """A page of jobs, newest first, and the token of the next page."""
        found: JobPage = await self.jobs.page(query)
        return [self._document(row) for row in found.jobs], found.next_page_token

    async def count_by_state(self) -> Mapping[JobState, int]:
        """How many jobs are in each state."""
        return await self.jobs.count_by_state()

    async def job(self, job_id: str) -> Document:
        """The job, and under ``observed`` what the cluster last said of it and the size that is pinned."""
        return self._document(await self.jobs.get(job_id))

    def _document(self, row: JobRow) -> Document:
        return {**job_document(row, self.prices), "observed": {**row.observed, "pinned": row.scale.pinned}}

    async def metrics(self, job_id: str, keys: Sequence[str] | None, max_points: int) -> Document:
        """``{keys, points}``; None asks for every key there is."""
        query = MetricsQuery(keys=None if keys is None else tuple(keys), max_points=max_points)
        return await self.telemetry.metrics(job_id, query)

    async def logs(self, job_id: str, rank: int | None, num_lines: int) -> LogText:
        """The newest lines, of one rank or of all."""
        return await self.telemetry.logs(job_id, LogQuery(rank=rank, tail=num_lines))

    async def whole_log(self, job_id: str, rank: int | None) -> AsyncIterator[str]:
        """The log from its beginning to where it ends now, in parts."""
        offset = -1
        part = LogText(text="", next_offset=0)
        while part.next_offset > offset:
            offset = part.next_offset
            part = await self.telemetry.logs(job_id, LogQuery(rank=rank, offset=offset))
            yield part.text

    async def compare(self, job_ids: Sequence[str], keys: Sequence[str]) -> Document:
        """``{keys, differences, series}``; a page needs no point of the series, the charts fetch them."""
        return await self.telemetry.compare(job_ids, MetricsQuery(keys=tuple(keys), max_points=2))

    async def command(self, job_id: str, verb: str, *, from_start: bool = False) -> None:
        """Cancel, pause, resume, retry or delete."""
        if verb == "delete":
            await self.jobs.delete(job_id)
        else:
            await self.jobs.command(job_id, Verb(verb), from_start=from_start)

    async def scale(self, job_id: str, workers: int | str, reason: str) -> None:
        """Pin a size, or ``"auto"``."""
        await self.jobs.scale(job_id, {"workers": workers, "reason": reason})

"""A point at which two requests of one job meet, so that both have read the same row before either writes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from service.records import JobRow
from service.services import Services, build_services
from service.settings import Settings
from service.store.opening import Store, open_store

MEET_S = 60.0


class MeetingStore:
    """The API's side of jobs, where the first two that read a job after ``expect_two`` wait for each other."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._expected: dict[str, asyncio.Barrier] = {}

    def expect_two(self, job_id: str) -> None:
        self._expected[job_id] = asyncio.Barrier(2)

    async def meet(self, job_id: str) -> None:
        """Wait for the other; whoever comes later goes on at once."""
        barrier = self._expected.get(job_id)
        if barrier is None:
            return
        if barrier.n_waiting == barrier.parties - 1:
            del self._expected[job_id]
        async with asyncio.timeout(MEET_S):
            await barrier.wait()

    async def job(self, job_id: str) -> JobRow | None:
        found: JobRow | None = await self._store.job(job_id)
        await self.meet(job_id)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def meeting_services(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> tuple[Services, MeetingStore]:
    """The API's services over such a store."""
    made: list[MeetingStore] = []

    def opened(*arguments: Any) -> Store:
        store = open_store(*arguments)
        made.append(MeetingStore(store.jobs))
        return replace(store, jobs=made[-1])  # type: ignore[arg-type]  # all that a JobStore is, and a meeting point

    monkeypatch.setattr("service.services.open_store", opened)
    services = build_services(settings)
    return services, made[-1]

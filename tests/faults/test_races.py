"""Every command in every state, raced against every other and against every move of the reconciler, on rows alone.

What becomes of a job that lives is in ``test_live_races.py``. Both have read the same row before either writes: a
meeting point in the store's reading makes sure of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import httpx2
import pytest

from service.app import create_app
from service.folders import token_file
from service.records import JobRow, Transition
from service.settings import Settings, load_settings
from service.states import TRANSITIONS, JobState, Verb
from service.store.opening import Store
from service.store.port import StaleRowError, TransitionError
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.meeting import MeetingStore, meeting_services
from tests.faults.oracle import Case, judge
from tests.service.conftest import BASE_URL, database_url, postgres
from tests.service.given import leader, spec

__all__ = ["database_url", "postgres"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

_S = JobState
RECONCILERS = frozenset(
    {_S.STARTING, _S.RUNNING, _S.RECOVERING, _S.SUCCEEDED, _S.FAILED, _S.QUEUED, _S.PAUSED, _S.CANCELLED}
)
"""States to which the reconciler moves a placed job; the rest is for users."""

WAYS: Mapping[JobState, tuple[JobState, ...]] = {
    _S.QUEUED: (),
    _S.STARTING: (_S.STARTING,),
    _S.RUNNING: (_S.STARTING, _S.RUNNING),
    _S.RECOVERING: (_S.STARTING, _S.RUNNING, _S.RECOVERING),
    _S.PAUSING: (_S.STARTING, _S.RUNNING, _S.PAUSING),
    _S.PAUSED: (_S.STARTING, _S.RUNNING, _S.PAUSING, _S.PAUSED),
    _S.CANCELLING: (_S.STARTING, _S.RUNNING, _S.CANCELLING),
    _S.SUCCEEDED: (_S.STARTING, _S.RUNNING, _S.SUCCEEDED),
    _S.FAILED: (_S.STARTING, _S.RUNNING, _S.FAILED),
    _S.CANCELLED: (_S.STARTING, _S.RUNNING, _S.CANCELLING, _S.CANCELLED),
}


@dataclass
class Arena:
    """The real API and the real store of one database."""

    client: httpx2.AsyncClient
    store: Store
    meeting: MeetingStore
    fence: int

    async def job_in(self, state: JobState) -> JobRow:
        """A new job that has come to ``state`` by legal moves."""
        job = (await self.store.jobs.submit(spec())).job
        for to in WAYS[state]:
            if to is _S.STARTING:
                job = await self.store.reconciler.admit(job, 1, self.fence)
            else:
                job = await self.store.reconciler.transition(job, to, Transition(), self.fence)
        return job

    def deeds(self, state: JobState) -> dict[str, Callable[[str], Awaitable[int]]]:
        """What may happen to a job in ``state``; each gives the status of its answer."""
        moves = sorted(TRANSITIONS[state] & RECONCILERS) if state not in (_S.PAUSED, _S.FAILED, _S.CANCELLED) else []
        return {
            **{verb.value: self._call("POST", f"/{verb}") for verb in Verb},
            "retry from start": self._call("POST", "/retry?from=start"),
            "scale": self._call("PUT", "/scale", {"workers": 2}),
            "delete": self._call("DELETE", ""),
            **{f"to {to}": self._move(to) for to in moves},
        }

    def _call(self, method: str, path: str, body: object = None) -> Callable[[str], Awaitable[int]]:
        async def act(job_id: str) -> int:
            answer = await self.client.request(method, f"/api/v1/jobs/{job_id}{path}", json=body)
            return answer.status_code

        return act

    def _move(self, to: JobState) -> Callable[[str], Awaitable[int]]:
        async def act(job_id: str) -> int:
            job = await self.store.reconciler.job(job_id)
            await self.meeting.meet(job_id)
            assert job is not None
            try:
                if to is _S.STARTING:
                    await self.store.reconciler.admit(job, 1, self.fence)
                else:
                    await self.store.reconciler.transition(job, to, Transition(), self.fence)
            except (StaleRowError, TransitionError):
                return 409
            return 200

        return act


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    """A home with a database of each kind."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return load_settings({"home": home, "database": database_url}, {})


@pytest.fixture
async def arena(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Arena]:
    services, meeting = meeting_services(settings, monkeypatch)
    app = create_app(services=services)
    async with app.router.lifespan_context(app):
        headers = {"Authorization": f"Bearer {token_file(settings.home).read_text().strip()}"}
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as client:
            yield Arena(client, services.store, meeting, await leader(services.store))


@pytest.mark.parametrize("state", JobState)
async def test_any_two_at_once_leave_a_legal_state_and_a_whole_history(
    arena: Arena, settings: Settings, state: JobState
) -> None:
    names = sorted(arena.deeds(state))
    for first, second in combinations_with_replacement(names, 2):
        job = await arena.job_in(state)
        deeds = arena.deeds(state)
        arena.meeting.expect_two(job.id)
        statuses = await asyncio.gather(deeds[first](job.id), deeds[second](job.id))
        assert all(status < 500 for status in statuses), (first, second, statuses)
        if first == second and first in ("pause", "cancel", "scale"):
            assert statuses[0] == statuses[1], (first, statuses)
        if first.startswith("to ") and second.startswith("to "):
            assert sorted(statuses) == [200, 409], "two moves from one row"
    assert_nothing_found(judge(Case(evidence=gather(settings))))

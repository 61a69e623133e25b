"""Every two commands at once on a job that lives, in every state: where it comes to rest is told by the contract.

Real API, real reconciler, real controllers; the workers are those of the stage. In each state the jobs of all pairs
are brought there, both requests of a pair read the same row before either writes while the reconciler goes on, and
then everything runs until it rests, some pairs at a time: all of them queue for one process's only writer. The table is
``legal_ends``, and the oracle is asked of all that remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement

import httpx2
import pytest

from service.app import create_app
from service.folders import token_file
from service.records import JobRow
from service.settings import Settings
from service.states import JobState
from service.store.opening import Store
from tests.faults.diary import read_diary
from tests.faults.evidence import gather
from tests.faults.findings import Finding, assert_nothing_found, at_rest
from tests.faults.legal_ends import REST, End, legal_ends
from tests.faults.meeting import MeetingStore, meeting_services
from tests.faults.noted import noted_spec
from tests.faults.oracle import Case, judge
from tests.faults.stage_cluster import StageCluster
from tests.service.conftest import BASE_URL
from tests.service.given import leader
from tests.service.scene import Scene
from workers.control.names import WorkerName, parse_name

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

_S = JobState
SECRET = "SECRET_OF_RACES"
REST_S = 120.0
LOOK_S = 0.03
HALT = 7
"""The round at which those stand that are brought to a state of those who train; they have saved."""
COMMANDS: Mapping[str, tuple[str, str, object]] = {
    **{verb: ("POST", f"/{verb}", None) for verb in ("cancel", "pause", "resume", "retry")},
    "retry from start": ("POST", "/retry?from=start", None),
    "scale": ("PUT", "/scale", {"workers": 1}),
    "delete": ("DELETE", "", None),
}
PAIRS = tuple(combinations_with_replacement(COMMANDS, 2))
NUM_PORTIONS = 4


@dataclass
class Field:
    """The API and the reconciler of one home over a stage."""

    client: httpx2.AsyncClient
    store: Store
    meeting: MeetingStore
    cluster: StageCluster
    scene: Scene

    async def request(self, job_id: str, command: str) -> int:
        method, path, body = COMMANDS[command]
        return (await self.client.request(method, f"/api/v1/jobs/{job_id}{path}", json=body)).status_code

    async def row(self, job_id: str) -> JobRow | None:
        return await self.store.reconciler.job(job_id)

    async def until(self, job_ids: Collection[str], holds: Callable[[JobRow | None], bool]) -> None:
        """The reconciler goes on until this was seen of all jobs."""
        deadline_s, left = time.monotonic() + REST_S, list(job_ids)
        while left := [job_id for job_id in left if not holds(await self.row(job_id))]:
            assert time.monotonic() < deadline_s, [await self.row(job_id) for job_id in left]
            await self.scene.reconciler.tick()
            await asyncio.sleep(LOOK_S)

    async def until_in(self, job_ids: Collection[str], state: JobState) -> None:
        await self.until(job_ids, lambda row: row is not None and row.state is state)

    async def bring(self, job_ids: Collection[str], state: JobState) -> None:
        """Let all jobs, which were just submitted, live until they are in ``state``, and stand still there."""
        if state is _S.QUEUED:
            return
        if state is _S.STARTING:
            self.cluster.upto = 0
            await self.until_in(job_ids, _S.STARTING)
        elif state in (_S.SUCCEEDED, _S.FAILED):
            await self.until_in(job_ids, state)
        else:
            self.cluster.upto = HALT
            await self.until_in(job_ids, _S.RUNNING)
            await self._leave_running(job_ids, state)

    async def _leave_running(self, job_ids: Collection[str], state: JobState) -> None:
        await self._until_told(job_ids, "checkpoint")
        if state is _S.RECOVERING:
            self.cluster.upto = 0  # who comes in their place does not get as far as training
            await self.cluster.kill([n for n in await self.cluster.names() if isinstance(parse_name(n), WorkerName)])
            await self.until_in(job_ids, state)
        elif state is not _S.RUNNING:
            command = "pause" if state in (_S.PAUSING, _S.PAUSED) else "cancel"
            assert {await self.request(job_id, command) for job_id in job_ids} == {200}
            if state is _S.PAUSED:
                await self._until_told(job_ids, "pause")
                self.cluster.upto = sys.maxsize
            if state in (_S.PAUSED, _S.CANCELLED):
                await self.until_in(job_ids, state)

    async def _until_told(self, job_ids: Collection[str], kind: str) -> None:
        """Until all have told of that: a job that hears of a pause late ends first, and one that saves late is told so.

        Raises AssertionError.
        """
        deadline_s = time.monotonic() + REST_S
        for job_id in job_ids:
            while kind not in {row.kind for row in await self.store.telemetry.timeline(job_id, 0, 100)}:
                assert time.monotonic() < deadline_s, f"{job_id} never told of a {kind}"
                await self.scene.look()


@pytest.fixture
async def field(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Field]:
    monkeypatch.setattr("workers.control.pace.STEADY_S", 0.02)
    monkeypatch.setattr("workers.control.pace.TURN_S", 0.02)
    monkeypatch.setattr("workers.control.pace.BRISK_S", 0.01)
    for name in ("orphans.PATIENCE_S", "reaper.REAP_S", "reaper.BUNDLES_S", "reconciler.VIEW_S"):
        monkeypatch.setattr(f"service.reconciler.{name}", 0.1)
    services, meeting = meeting_services(settings, monkeypatch)
    cluster = StageCluster(num_cpus=4 * len(PAIRS) // NUM_PORTIONS, diary=settings.home / "diary")
    app = create_app(services=services)
    async with app.router.lifespan_context(app):
        headers = {"Authorization": f"Bearer {token_file(settings.home).read_text().strip()}"}
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as client:
            scene = Scene(services.store, settings, await leader(services.store), cluster)
            playing = asyncio.create_task(cluster.play())
            yield Field(client, services.store, meeting, cluster, scene)
            await scene.reconciler.settle(5)
            await cluster.lose_everything()
            playing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await playing


@pytest.mark.parametrize("portion", range(NUM_PORTIONS))
@pytest.mark.parametrize("state", JobState)
async def test_any_two_commands_at_once_bring_a_job_to_rest_where_the_contract_says(
    field: Field, settings: Settings, state: JobState, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if state is not _S.FAILED:
        monkeypatch.setenv(SECRET, "there")
    pairs: dict[str, tuple[str, str]] = {}
    for number, pair in enumerate(PAIRS[portion::NUM_PORTIONS]):
        spec = {**noted_spec(number), "steps": 15, "workers": {"min": 1, "max": 2}, "env": {"KEY": {"secret": SECRET}}}
        pairs[(await field.client.post("/api/v1/jobs", json=spec)).json()["id"]] = pair
    await field.bring(pairs, state)
    monkeypatch.setenv(SECRET, "there")
    rows = {job_id: await field.row(job_id) for job_id in pairs}
    began = {job_id: row.attempt for job_id, row in rows.items() if row is not None and row.state is state}
    assert len(began) == len(pairs), f"not all are {state}: {rows}"
    answers = await race(field, pairs)
    field.cluster.upto = sys.maxsize
    await field.until(pairs, lambda row: row is None or row.state in REST)
    wrong = []
    for job_id, (first, second) in pairs.items():
        row = await field.row(job_id)
        end = End(*answers[job_id], *((row.state, row.attempt) if row else (None, 0)))
        legal = {e if e.state else e._replace(attempt=0) for e in legal_ends(state, began[job_id], first, second)}
        if end not in legal:
            wrong.append(f"{first} and {second} of a {state} job: {end}, legal: {sorted(map(str, legal))}")
    assert not wrong, "\n".join(wrong)
    assert_began_anew(settings, pairs, state)
    await judged(field, settings, state, [job_id for job_id, pair in pairs.items() if "delete" in pair])


async def race(field: Field, pairs: Mapping[str, tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """Both commands of each pair at once, and the reconciler at work; the statuses of their answers."""

    async def both(job_id: str) -> tuple[int, int]:
        field.meeting.expect_two(job_id)
        first, second = await asyncio.gather(*(field.request(job_id, command) for command in pairs[job_id]))
        return first, second

    async def tick() -> None:
        while True:
            await field.scene.reconciler.tick()
            await asyncio.sleep(LOOK_S / 10)

    ticking = asyncio.create_task(tick())
    try:
        return dict(zip(pairs, await asyncio.gather(*map(both, pairs)), strict=True))
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking


def assert_began_anew(settings: Settings, pairs: Mapping[str, tuple[str, str]], state: JobState) -> None:
    """A cancelled job that was tried again from its start began with its first step, another with its checkpoint."""
    if state is not _S.CANCELLED:
        return
    notes = read_diary(settings.home / "diary")
    for job_id, pair in pairs.items():
        later = [note.step for note in notes if note.job == job_id and note.attempt == 2]
        if later and not {"retry", "retry from start"} <= set(pair):
            assert (min(later) == 1) == ("retry from start" in pair), (pair, min(later))


async def judged(field: Field, settings: Settings, state: JobState, deleted: Collection[str]) -> None:
    """The oracle finds nothing, once what is left over was reaped."""

    async def look() -> list[Finding]:
        await field.scene.reconciler.tick()
        evidence, notes = gather(settings), read_diary(settings.home / "diary")
        lost = dict.fromkeys(evidence.jobs, 1) if state is _S.RECOVERING else {}
        remains = await field.cluster.remains()
        return judge(Case(evidence=evidence, notes=notes, deleted=deleted, remains=remains, lost=lost))

    assert_nothing_found(await at_rest(look, REST_S))

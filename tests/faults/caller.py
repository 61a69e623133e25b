"""A program that calls the API, and says everything until it is answered: the API may die at any write."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from service.folders import token_file
from service.settings import Settings
from tests.faults.crash_points import CrashPoint, When
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import Finding, assert_nothing_found, at_rest
from tests.faults.noted import noted_spec
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, CLUSTER, RECONCILER, Installation
from tests.waiting import LIMIT_S, wait_for

TEND_S, LOOK_S = 0.01, 0.02


@dataclass
class Caller:
    """``dead`` are the processes that have ended by themselves, each of which was started again."""

    installation: Installation
    client: httpx2.AsyncClient
    point: CrashPoint | None = None
    accepted: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)

    def arm(self, part: str, method: str, when: When, commit: int = 0) -> None:
        """Let the API die at this write of a part of its store, or after that commit of it."""
        self.point = CrashPoint(part=part, method=method, when=when, commit=commit)
        self.installation.kill(API)
        self.installation.start(API, self.point)

    async def say(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """Under ``/api/v1``."""
        return await self.visit(method, f"/api/v1{path}", **request)

    async def visit(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """Any path, again and again until there is an answer."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            try:
                return await self.client.request(method, path, timeout=LIMIT_S, **request)
            except httpx2.TransportError:
                assert time.monotonic() < deadline_s, self.installation.log(API)[-3000:]
                await asyncio.sleep(TEND_S)

    async def see(self, path: str) -> Any:
        """What is there."""
        return _done(await self.say("GET", path))

    async def do(self, path: str, **request: Any) -> Any:
        """POST; what there is then."""
        return _done(await self.say("POST", path, **request))

    async def submit(self, number: int, **changes: Any) -> str:
        """Submit a job under a key."""
        return await self.make("/jobs", number, noted_spec(number) | changes)

    async def make(self, path: str, number: int, document: object) -> str:
        """Make a job or a sweep under a key; its id."""
        key = f"key-{number}"
        made = await self.do(path, json=document, headers={"Idempotency-Key": key})
        self.accepted[key] = str(made["id"])
        return self.accepted[key]

    async def until(self, path: str, holds: Callable[[Any], object]) -> Any:
        """Wait until something holds of what is there; what is there then."""
        deadline_s = time.monotonic() + LIMIT_S
        while not holds(seen := await self.see(path)):
            assert time.monotonic() < deadline_s, f"this stays at {path}: {seen}"
            await asyncio.sleep(LOOK_S)
        return seen

    async def judged(self) -> None:
        """The API died where it was to, and nothing else did; once all is at rest the oracle finds nothing."""
        assert self.point is not None
        assert self.installation.has_struck(API, self.point), f"{self.point} was not reached"
        assert self.dead == [API]
        # Files of what was deleted go, whoever died in between.
        assert_nothing_found(await at_rest(self._found, LIMIT_S))

    async def _found(self) -> list[Finding]:
        return judge(
            Case(
                evidence=gather(self.installation.settings),
                notes=read_diary(self.installation.diary),
                saves=read_saves(self.installation.diary),
                accepted=self.accepted,
                deleted=self.deleted,
                remains=await self.installation.cluster.remains(),
            )
        )

    async def tend(self) -> None:
        """Start again what has ended, as `serve` does, until cancelled."""
        while True:
            self.dead += self.installation.tend()
            await asyncio.sleep(TEND_S)


def in_state(*states: str) -> Callable[[Any], bool]:
    """For ``until``: whether something is in one of these."""
    return lambda seen: seen["state"] in states


def _done(answer: httpx2.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


@contextlib.asynccontextmanager
async def calling(settings: Settings, point: CrashPoint | None = None) -> AsyncIterator[Caller]:
    """A caller of a new installation, whose first API dies at ``point``."""
    with Installation(settings, names=(CLUSTER, RECONCILER)) as installation:
        installation.start(API, point)
        token = token_file(settings.home)
        wait_for("the API's token", token.exists)
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        async with httpx2.AsyncClient(base_url=installation.url, headers=headers, trust_env=False) as client:
            made = Caller(installation, client, point)
            tending = asyncio.create_task(made.tend())
            try:
                yield made
            finally:
                tending.cancel()


@pytest.fixture
async def caller(settings: Settings) -> AsyncIterator[Caller]:
    """See ``Caller``."""
    async with calling(settings) as made:
        yield made

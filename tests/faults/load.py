"""Mixed load on a service that is being killed: callers that submit, repeat themselves and command, by seeded choice.

A caller treats the service as a careful program would: a submission is repeated with its key until it is
answered, anything else is said once. What was answered is remembered for the oracle.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

RETRY_S = 0.05
CALL_S = 30.0
"""A call that takes longer counts as broken; on a busy machine one may take ten seconds."""
FINISH_S = 2 * CALL_S
ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
FINE = frozenset({200, 201, 204, 404, 409, 412, 422, 503})
VERBS = ("cancel", "pause", "resume", "retry")


@dataclass
class Load:
    """``accepted`` maps keys to jobs; ``deleted`` are jobs whose deletion was asked for; ``wrong`` are bad answers."""

    client: httpx2.AsyncClient
    rng: random.Random
    spec: Callable[[int], Mapping[str, Any]]
    most_jobs: int  # may be raised meanwhile
    pause_s: float = 0.05
    accepted: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    _num_keys: int = 0
    _deletions: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def running(self, num_callers: int = 3) -> AsyncIterator[None]:
        """Calls are made while the block runs; what has been begun is finished at its end."""
        stop = asyncio.Event()
        callers = [asyncio.create_task(self._caller(stop)) for _ in range(num_callers)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(asyncio.gather(*callers), FINISH_S)

    async def _caller(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            act = self.rng.choices(
                (self._submit, self._command, self._scale, self._delete, self._repeat), (3, 6, 2, 1, 2)
            )
            await act[0]()
            await asyncio.sleep(self.rng.uniform(0, 2 * self.pause_s))

    async def _submit(self) -> None:
        if self._num_keys < self.most_jobs:
            await self.submit()

    async def submit(self) -> None:
        """One job more. After ``running`` nobody commands it: it trains to its end."""
        self._num_keys += 1
        await self.post(self._num_keys)

    async def _repeat(self) -> None:
        """The same submission once more, as after an answer that never arrived."""
        if self.accepted:
            key = self.rng.choice(sorted(self.accepted))
            await self.post(int(key.removeprefix("key-")))

    async def post(self, number: int) -> None:
        """Submit a job, again and again until it is answered; the same number is the same submission."""
        key = f"key-{number}"
        while True:
            answer = await self._call("POST", "/jobs", json=dict(self.spec(number)), headers={"Idempotency-Key": key})
            if answer is not None and answer.status_code != 503:
                break
            await asyncio.sleep(RETRY_S)
        known = self.accepted.get(key)
        if answer.status_code in (200, 201):
            job_id = str(answer.json()["id"])
            if known not in (None, job_id) or (known is not None and answer.status_code == 201):
                self.wrong.append(f"{key} was answered with {answer.status_code} {job_id}, it had made {known}")
            self.accepted[key] = job_id
        elif not (answer.status_code == 409 and self._deletions[known or ""]):  # it may be gone before that is answered
            self.wrong.append(f"{key} was answered with {answer.status_code}: {answer.text[:300]}")

    async def _command(self) -> None:
        if job_id := self._some_job():
            verb = self.rng.choice(VERBS)
            params = {"from": "start"} if verb == "retry" and self.rng.random() < 0.3 else {}
            await self._call("POST", f"/jobs/{job_id}/{verb}", params=params)

    async def _scale(self) -> None:
        if job_id := self._some_job():
            workers = self.rng.choice((1, 2, 3, "auto", {"min": 1, "max": 2}))
            await self._call("PUT", f"/jobs/{job_id}/scale", json={"workers": workers})

    async def _delete(self) -> None:
        if (job_id := self._some_job()) and self.rng.random() < 0.5:
            self._deletions[job_id] += 1
            answer = await self._call("DELETE", f"/jobs/{job_id}")
            if answer is None or answer.status_code in (204, 404, 503):  # of the last nobody knows
                self.deleted.add(job_id)
            if answer is not None and answer.status_code == 404 and self._deletions[job_id] == 1:
                self.wrong.append(f"{job_id} was gone before anybody had asked for that")

    def _some_job(self) -> str | None:
        known = sorted(set(self.accepted.values()) - self.deleted)
        return self.rng.choice(known) if known else None

    async def settle(self, limit_s: float, tend: Callable[[], object]) -> Counter[str]:
        """Resume what is paused, and wait until every job has ended; how many are in which state.

        ``tend`` is called meanwhile: a reconciler that has lost its Ray ends, to be started again. Where
        ``limit_s`` is over, the states are those of that moment.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            tend()
            states = await self._states()
            if set(states.values()) <= ENDED or time.monotonic() > deadline_s:
                return Counter(states.values())
            for job_id in [job_id for job_id, state in states.items() if state == "PAUSED"]:
                await self._call("POST", f"/jobs/{job_id}/resume")
            await asyncio.sleep(RETRY_S)

    async def _states(self) -> dict[str, str]:
        states = {}
        for job_id in sorted(set(self.accepted.values())):
            answer = await self._call("GET", f"/jobs/{job_id}")
            if answer is None or answer.status_code == 503:
                states[job_id] = "UNKNOWN"
            elif answer.status_code == 200:
                states[job_id] = str(answer.json()["state"])
        return states

    async def _call(self, method: str, path: str, **request: Any) -> httpx2.Response | None:
        """One try; None where the connection broke."""
        try:
            answer = await self.client.request(method, f"/api/v1{path}", timeout=CALL_S, **request)
        except httpx2.TransportError:
            self.answers["broken"] += 1
            return None
        self.answers[str(answer.status_code)] += 1
        is_untold = answer.status_code == 503 and "Retry-After" not in answer.headers
        if answer.status_code not in FINE or is_untold:
            self.wrong.append(f"{method} {path}: {answer.status_code}: {answer.text[:300]}")
        return answer

"""300 viewers of one job, cut off again and again: events missed, and seconds until a viewer has them.

    python -m tests.benchmarks.viewers --viewers 300 --seconds 60 --output results.jsonl

The API's process serves the streams; the job's rounds, log lines and timeline rows come by the store's own calls, as
a reconciler tells them. A viewer breaks its connection at random moments, in the middle of an event and between two
of one change, and comes back with the last id that it saw whole, as a browser does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.records import JobRow
from service.settings import Settings
from service.store.opening import Store, open_store
from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import in_words, spread_document
from tests.benchmarks.own_service import Running, api_alone, footprint
from workers.plan import PlanId, TimelineKind
from workers.spec import parse_job_spec
from workers.status import JobSnapshot, LogChunk, RoundRecord, RunPhase, TimelineRow

A_FOLD = 5
FOLDS_PER_S = 5
GRACE_S = 60.0
LEAVES = 0.01
"""The chance that a viewer leaves after an event, whatever belongs to the same change."""
LINE = b"2026-11-21 step told, and a little more text as logs have it\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to look: the service, the job, and the change after which everything is wanted."""

    running: Running
    job_id: str
    begin: int


@dataclass(slots=True)
class Viewer:
    """What one viewer has seen; ``stays_s`` is how long it stays connected at most."""

    place: Place
    dice: random.Random
    stays_s: float
    last_id: int
    steps: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    late_s: list[float] = field(default_factory=list)
    num_connections: int = 0
    num_repeated: int = 0

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(self.dice.uniform(0.1, self.stays_s)):
                    await self._stay()

    async def _stay(self) -> None:
        """One connection, from its request to its end."""
        job_id, running = self.place.job_id, self.place.running
        # HTTP/1.0, so that the answer is not cut into chunks.
        path = f"/api/v1/stream?topic=job:{job_id}&topic=metrics:{job_id}&topic=logs:{job_id}"
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=2**24)
        try:
            headers = f"Host: 127.0.0.1:{running.port}\r\nAuthorization: Bearer {running.token}\r\n"
            writer.write(f"GET {path} HTTP/1.0\r\n{headers}Last-Event-ID: {self.last_id}\r\n\r\n".encode())
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"the stream answered {status!r}")
            await reader.readuntil(b"\r\n\r\n")
            self.num_connections += 1
            async for fields in _events(reader):
                self._take(fields)
                if self.dice.random() < LEAVES:
                    return
        finally:
            writer.close()

    def _take(self, fields: dict[str, str]) -> None:
        data = json.loads(fields.get("data", "{}"))
        match fields.get("event"):
            case "metrics":
                for point in data["points"]:
                    self.num_repeated += point["step"] in self.steps
                    if point["step"] not in self.steps:
                        self.late_s.append(time.time() - point["values"]["user.told_at"])
                    self.steps.add(point["step"])
            case "timeline":
                self.rows.add(data["seq"])
            case "log":
                self.ends.add(data["next_offset"])
        if "id" in fields:
            self.last_id = int(fields["id"])


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, str]]:
    fields: dict[str, str] = {}
    while line := await reader.readline():
        text = line.decode().rstrip("\n")
        if not text:
            yield fields
            fields = {}
        elif not text.startswith(":"):
            name, _, value = text.partition(": ")
            fields[name] = value


def main() -> None:
    """Tell, look and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--viewers", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0, help="during which the job tells something")
    parser.add_argument("--stays-s", type=float, default=8.0, help="longest time between two cuts of a viewer")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="ct-bench-") as name:
        home = Path(name) / "home"
        with api_alone(home) as running:
            before_mb = footprint(running.api).rss_mb
            viewers, num_folds = asyncio.run(_measure(running, home, options))
            after_mb = footprint(running.api).rss_mb
    _print(viewers, num_folds, (before_mb, after_mb), options)


async def _measure(running: Running, home: Path, options: argparse.Namespace) -> tuple[list[Viewer], int]:
    store = open_store(Settings(home=home).database_url)
    try:
        fence = await store.reconciler.take_lease("benchmark", 1e6)
        assert fence is not None
        spec = {"name": "watched", "entrypoint": "workers.recipes.digits:build", "steps": 10**6}
        submitted = await store.jobs.submit(parse_job_spec(spec))
        job = await store.reconciler.admit(submitted.job, 1, fence)
        begin = await store.telemetry.change()
        place = Place(running=running, job_id=job.id, begin=begin)
        viewers = [Viewer(place, random.Random(n), options.stays_s, begin) for n in range(options.viewers)]
        tasks = [asyncio.create_task(viewer.watch()) for viewer in viewers]
        num_folds = int(options.seconds * FOLDS_PER_S)
        await _tell(store, job, fence, num_folds)
        await _until_all_have(viewers, tasks, num_folds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return viewers, num_folds
    finally:
        await store.close()


async def _tell(store: Store, job: JobRow, fence: int, num_folds: int) -> None:
    begin_s = time.monotonic()
    for n in range(num_folds):
        await asyncio.sleep(max(0.0, begin_s + n / FOLDS_PER_S - time.monotonic()))
        told = JobSnapshot(
            job_id=job.id,
            attempt=1,
            term=1,
            phase=RunPhase.RUNNING,
            num_current=1,
            records=tuple(_record(A_FOLD * n + r) for r in range(1, A_FOLD + 1)),
            logs=(LogChunk(worker_id="1.0", offset=n * len(LINE), rank=0, time=time.time(), data=LINE),),
            timeline=(_row(n),),
        )
        await store.reconciler.fold(told, fence)


def _record(round: int) -> RoundRecord:
    values: dict[str, Any] = {"loss": 1.0 / round, "samples_per_s": 900.0, "user.told_at": time.time()}
    return RoundRecord(
        lineage=1,
        round=round,
        generation=1,
        plan_id=PlanId(1, 1),
        cursor=round,
        samples=1,
        time=time.time(),
        values=values,
    )


def _row(n: int) -> TimelineRow:
    return TimelineRow(
        key=f"row-{n}", kind=TimelineKind.BATCH, time=time.time(), step=n, actor="user", reason="a try", cost_s=0.0
    )


async def _until_all_have(viewers: list[Viewer], tasks: list[asyncio.Task[None]], num_folds: int) -> None:
    """A bounded while: what has not come then counts as missed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            while any(_num_missed(viewer, num_folds) for viewer in viewers):
                broken = [task for task in tasks if task.done()]
                if broken:
                    broken[0].result()
                await asyncio.sleep(0.2)


def _num_missed(viewer: Viewer, num_folds: int) -> int:
    points = set(range(1, num_folds * A_FOLD + 1)) - viewer.steps
    rows = set(range(1, num_folds + 1)) - viewer.rows
    ends = {n * len(LINE) for n in range(1, num_folds + 1)} - viewer.ends
    return len(points) + len(rows) + len(ends)


def _print(viewers: list[Viewer], num_folds: int, rss_mb: tuple[float, float], options: argparse.Namespace) -> None:
    missed = sum(_num_missed(viewer, num_folds) for viewer in viewers)
    wanted = len(viewers) * num_folds * (A_FOLD + 2)
    cuts = sum(viewer.num_connections - 1 for viewer in viewers)
    repeated = sum(viewer.num_repeated for viewer in viewers)
    late_s = [late for viewer in viewers for late in viewer.late_s]
    print(
        f"{len(viewers)} viewers, {cuts} reconnects: {missed} of {wanted} events missed, {repeated} points told again"
    )
    print(f"from a round's being told to a viewer's having it, cuts included: {in_words(late_s, 's')}")
    print(f"RSS of the API: {rss_mb[0]:.0f} MB before, {rss_mb[1]:.0f} MB after")
    counts = {"viewers": len(viewers), "reconnects": cuts, "missed": missed, "wanted": wanted, "repeated": repeated}
    figures = {**counts, "late_s": spread_document(late_s), "rss_mb": rss_mb, "seconds": options.seconds}
    tell_result(options.output, "stream.viewers", ("fastapi", "uvicorn"), figures)


if __name__ == "__main__":
    main()

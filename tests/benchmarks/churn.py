"""Memory of the service over a long time of coming and going: RSS of the API and of the reconciler.

    python -m tests.benchmarks.churn --minutes 60 --output results.jsonl

Against the whole of `serve`: jobs are submitted, looked at, listed, watched by streams that are cut off, scaled,
cancelled and deleted all the time, while one short real job after another trains. A line every half minute; in the
end how much grew between the second quarter of the time and the last.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.benchmarks.command import WHOLE, parser_of, tell_result, temporary_service
from tests.benchmarks.own_service import Running

NUM_CPUS = 2
PERIOD_S = 30.0
ENTRYPOINT = "workers.recipes.digits:build"
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
RECONCILER_MODULE = "service.reconciler"


@dataclass(slots=True)
class Caller:
    """Calls one after the other over one connection; counts what is answered."""

    running: Running
    connection: http.client.HTTPConnection
    counts: Counter[str] = field(default_factory=Counter)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer as JSON, None where it is another kind or a refusal."""
        headers = {"Authorization": f"Bearer {self.running.token}", "Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self.connection.getresponse()
        data = response.read()
        self.counts[f"{response.status // 100}xx"] += 1
        is_json = response.status < 300 and "json" in (response.headers["Content-Type"] or "")
        return json.loads(data) if is_json and data else None

    def peek(self, topic: str) -> None:
        """Open a stream, take what comes first, and go away."""
        connection = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=60)
        headers = {"Authorization": f"Bearer {self.running.token}", "Last-Event-ID": "0"}
        connection.request("GET", f"/api/v1/stream?topic={topic}", headers=headers)
        connection.getresponse().readline()
        connection.close()
        self.counts["streams"] += 1


def main() -> None:
    """Come and go, look at the memory and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds-per-s", type=float, default=2.0, help="of about a dozen calls each")
    options = parser.parse_args()
    with temporary_service(NUM_CPUS) as running:
        processes = {"API": running.api, "reconciler": _reconciler(running)}
        caller = Caller(running, http.client.HTTPConnection("127.0.0.1", running.port, timeout=60))
        seen = _churn(caller, processes, options)
    for who, rss_mb in seen.items():
        quarter = len(rss_mb) // 4
        before, after = (statistics.median(part) for part in (rss_mb[quarter : 2 * quarter], rss_mb[-quarter:]))
        print(f"{who}: {before:.1f} MB in the second quarter, {after:.1f} MB in the last; at most {max(rss_mb):.1f} MB")
    print(dict(caller.counts))
    figures = {"minutes": options.minutes, "rss_mb": seen, **caller.counts}
    tell_result(options.output, "churn", WHOLE, figures)


def _reconciler(running: Running) -> psutil.Process:
    serve = running.api.parent()
    assert serve is not None
    return next(child for child in serve.children() if RECONCILER_MODULE in child.cmdline())


def _churn(caller: Caller, processes: dict[str, psutil.Process], options: argparse.Namespace) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {who: [] for who in processes}
    begin_s = time.monotonic()
    looks = itertools.count(1)
    next_look_s = begin_s + PERIOD_S
    real = _real_jobs(caller)
    for turn in itertools.count():
        time.sleep(max(0.0, begin_s + turn / options.rounds_per_s - time.monotonic()))
        _come_and_go(caller, turn)
        next(real)
        if time.monotonic() >= next_look_s:
            for who, process in processes.items():
                seen[who].append(process.memory_info().rss / 1e6)
            told = ", ".join(f"{who} {rss_mb[-1]:.1f} MB" for who, rss_mb in seen.items())
            print(f"{(time.monotonic() - begin_s) / 60:5.1f} min  {told}, {caller.counts['rounds']} rounds", flush=True)
            next_look_s = begin_s + (next(looks) + 1) * PERIOD_S
        if time.monotonic() - begin_s >= 60 * options.minutes:
            return seen
    raise AssertionError


def _come_and_go(caller: Caller, turn: int) -> None:
    """A job that waits, with all that people do to one, until it is gone."""
    spec = {"name": f"goes-{turn}", "entrypoint": ENTRYPOINT, "steps": 100 + turn, "workers": 8}
    job_id = caller.call("POST", "/api/v1/jobs", spec)["id"]
    job = f"/api/v1/jobs/{job_id}"
    for path in (
        job,
        f"{job}/metrics",
        f"{job}/timeline",
        f"{job}/explain",
        "/api/v1/jobs?state=QUEUED",
        f"/jobs/{job_id}",
    ):
        caller.call("GET", path)
    for topic in ("jobs", f"metrics:{job_id}"):
        caller.peek(topic)
    caller.call("POST", f"{job}/cancel")
    caller.call("GET", "/jobs")
    caller.call("DELETE", job)
    caller.counts["rounds"] += 1


def _real_jobs(caller: Caller) -> Iterator[None]:
    """One job that trains after the other; each is deleted when it has ended."""
    for turn in itertools.count():
        spec = {"name": f"trains-{turn}", "entrypoint": ENTRYPOINT, "steps": 300, "workers": 1}
        job = f"/api/v1/jobs/{caller.call('POST', '/api/v1/jobs', spec)['id']}"
        while (caller.call("GET", job) or {}).get("state") not in ENDED:
            with contextlib.suppress(OSError):
                caller.peek(f"metrics:{job.rpartition('/')[2]}")
            caller.call("GET", f"{job}/metrics")
            yield
        caller.counts["trained"] += 1
        caller.call("DELETE", job)


if __name__ == "__main__":
    main()

"""Milliseconds of calls of the API while a job tells far too much, and while the same job is quiet, interleaved.

    python -m tests.benchmarks.loud_jobs --seconds 120 --output results.jsonl

Against the whole of `serve`, in turns: a quiet job, then one that writes 100 MB of log a minute, that reports 10,000
values a step, or that fails again and again, with a short error and with one of 10 MB: what the second costs beyond the
first is the text's, the rest that attempts start. Meanwhile others list and submit jobs and look at
one that waits (``others``), and its owner looks at the job itself (``its own``).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import itertools
import json
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.client import Client, RefusedError
from tests.benchmarks.command import WHOLE, parser_of, tell_result, temporary_service
from tests.benchmarks.figures import in_words, percentile, spread_document
from tests.benchmarks.own_service import Running

NUM_CPUS = 1
TASK_FILE = Path(__file__).with_name("loud_task.py")  # not imported: this process does without torch
KINDS = ("log", "values", "failure", "traceback")
QUIET = "quiet"
BLOCK_S = 10.0
CALLS_A_S = 20.0
START_S = 60.0
LOOK_S = 0.1
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
OTHERS, OWN = "others", "its own"


@dataclass
class Caller:
    """Calls over one connection; ``took_ms`` is kept under the kind of job, and whose calls they are."""

    running: Running
    bystander: str
    kind: str = QUIET
    took_ms: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=60)
        self._number = itertools.count()

    def begin(self, kind: str) -> None:
        """From now on beside a job of this kind; a connection that was idle meanwhile is made anew."""
        self.kind = kind
        self._connection.close()

    def round(self, job_id: str) -> Iterator[None]:
        """One call after the other of those that people and pages make."""
        waiting, own = f"/api/v1/jobs/{self.bystander}", f"/api/v1/jobs/{job_id}"
        yield self._call(OTHERS, "GET", "/api/v1/jobs")
        yield self._call(OWN, "GET", own)
        yield self._call(OTHERS, "POST", "/api/v1/jobs", _waiting(f"waits-{next(self._number)}"))
        yield self._call(OWN, "GET", f"{own}/metrics?keys=loss")
        yield self._call(OTHERS, "GET", f"{waiting}/explain")
        yield self._call(OWN, "GET", f"{own}/logs?tail=100")
        yield self._call(OTHERS, "GET", f"{waiting}/timeline")
        yield self._call(OWN, "GET", f"{own}/explain")
        yield self._call(OTHERS, "GET", "/jobs")
        yield self._call(OWN, "GET", f"/jobs/{job_id}")

    def _call(self, whose: str, method: str, path: str, body: Any = None) -> None:
        headers = {"Authorization": f"Bearer {self.running.token}", "Content-Type": "application/json"}
        begin_s = time.perf_counter()
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        data = response.read()
        self.took_ms[self.kind, whose].append(1000 * (time.perf_counter() - begin_s))
        if response.status >= 300:
            raise RuntimeError(f"{method} {path} answered {response.status}: {data[:200]!r}")


def main() -> None:
    """Take turns, and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="with each kind of job, and as long without it")
    options = parser.parse_args()
    with temporary_service(NUM_CPUS) as running, Client(f"http://127.0.0.1:{running.port}", running.token) as client:
        bundle = str(client.upload(_bundle())["id"])
        took_ms = _measure(running, client, bundle, options)
    spreads = {}
    for (kind, whose), ms in sorted(took_ms.items()):
        spreads[f"{kind}, {whose}"] = spread_document(ms)
        than = "" if kind.startswith(QUIET) else _against(ms, took_ms[f"{QUIET} for {kind}", whose])
        print(f"{kind:20s} {whose:8s} p95 {percentile(ms, 0.95):5.0f} ms; {in_words(ms, 'ms')}{than}")
    tell_result(options.output, "jobs.loud", WHOLE, {"seconds": options.seconds, "ms": spreads})


def _against(loud: list[float], quiet: list[float]) -> str:
    p50, p95 = (percentile(loud, part) / percentile(quiet, part) for part in (0.5, 0.95))
    return f"; p50 {p50:.2f} and p95 {p95:.2f} times that beside a quiet job"


def _measure(
    running: Running, client: Client, bundle: str, options: argparse.Namespace
) -> dict[tuple[str, str], list[float]]:
    caller = Caller(running, str(client.submit(_waiting("bystander"))["id"]))
    for _ in range(max(1, round(options.seconds / BLOCK_S))):
        for loud, is_loud in itertools.product(KINDS, (False, True)):
            with _job(client, bundle, loud if is_loud else QUIET) as job_id:
                caller.begin(loud if is_loud else f"{QUIET} for {loud}")
                _ask(caller, client, job_id)
            running.clear()
            caller.bystander = str(client.submit(_waiting("bystander"))["id"])
            print(f"{caller.kind}: {sum(map(len, caller.took_ms.values()))} calls in all", flush=True)
    return dict(caller.took_ms)


def _ask(caller: Caller, client: Client, job_id: str) -> None:
    """Calls at an even pace for a block; a job that has failed is run again."""
    begin_s = time.monotonic()
    turns: Iterator[None] = iter(())
    for turn in itertools.count():
        if time.monotonic() - begin_s >= BLOCK_S:
            return
        time.sleep(max(0.0, begin_s + turn / CALLS_A_S - time.monotonic()))
        if next(turns, StopIteration) is StopIteration:
            turns = caller.round(job_id)
            if client.job(job_id)["state"] == "FAILED":
                client.command(job_id, "retry")


@contextmanager
def _job(client: Client, bundle: str, loud: str) -> Iterator[str]:
    """One that trains, or has failed at once; cancelled after."""
    spec = {"name": f"job-{loud}", "entrypoint": "loud_task:build", "bundle": bundle, "config": {"loud": loud}}
    job_id = str(client.submit({**spec, "steps": 1_000_000, "workers": 1, "batch": {"global_size": 32}})["id"])
    deadline_s = time.monotonic() + START_S
    while (job := client.job(job_id))["state"] not in ENDED and not job["progress"]["step"]:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the job that is {loud} did not train within {START_S:.0f} s: {job['state']}")
        time.sleep(LOOK_S)
    yield job_id
    while client.job(job_id)["state"] not in ENDED:
        with contextlib.suppress(RefusedError):  # it has failed meanwhile
            client.command(job_id, "cancel")
        time.sleep(LOOK_S)


def _waiting(name: str) -> dict[str, Any]:
    """It wants more than there is."""
    return {"name": name, "entrypoint": "workers.recipes.digits:build", "steps": 100, "workers": 8}


def _bundle() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.write(TASK_FILE, TASK_FILE.name)
    return data.getvalue()


if __name__ == "__main__":
    main()

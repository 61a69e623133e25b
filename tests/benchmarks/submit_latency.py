"""Latency of submitting a job at 50 requests a second, ours over Ray's own job submission, in alternating blocks.

    python -m tests.benchmarks.submit_latency --ray-python /path/with/ray[default]/bin/python --output results.jsonl

Every job asks for more CPUs than its cluster has, so on both sides it waits and none starts: what is measured is
taking a job in. Ours is the whole of `serve` (API, SQLite on disk, reconciler, Ray head); ``--api-alone`` leaves the
latter two out. Ray's is the dashboard's REST interface, which its JobSubmissionClient speaks; with ``--ray-starts``
its jobs (`true`) start at once, as is usual there, while ours still wait: that is not like for like. After each
block its jobs are taken back, so that they do not weigh on the other side's. Latency counts from the moment a request
was due. Both ask for a token. Besides: how soon the API process answers, and what it holds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.command import parser_of
from tests.benchmarks.figures import (
    append_result,
    circumstances,
    in_words,
    percentile,
    spread_document,
    versions,
)
from tests.benchmarks.leaving import leave_in_order
from tests.benchmarks.offered_load import Answers, Target, offer
from tests.benchmarks.own_service import Running, api_alone, footprint, whole_service
from tests.benchmarks.rival_ray_jobs import RayJobs, ray_jobs

NUM_CPUS = 1
NUM_CPUS_ASKED = 8
WARM_UP = 10
START_S = 120.0
READY_LIMIT_S = 2.0
RSS_LIMIT_MB = 150.0


def main() -> None:
    """Measure and print."""
    leave_in_order()
    options = _options()
    with tempfile.TemporaryDirectory(prefix="ct-bench-") as name:
        _measure_start(Path(name), options)
        with ExitStack() as stack:
            running = stack.enter_context(_service(Path(name) / "home", api_only=options.api_alone))
            targets = [_ours(running)]
            version = "not run"
            if options.ray_python:
                rival = stack.enter_context(ray_jobs(Path(name) / "rival", options.ray_python, NUM_CPUS))
                targets.append(_rays(rival, starts=options.ray_starts))
                version = rival.version
            answers = _alternate(targets, options)
            held = footprint(running.api)
        print(f"API after the load: RSS {held.rss_mb:.0f} MB, of Ray and torch imported: {list(held.loaded) or 'none'}")
    _print(answers, version, options)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="of ours")
    parser.add_argument("--per-s", type=float, default=50.0)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--ray-python", type=Path, help="interpreter of an environment with ray[default]")
    parser.add_argument("--ray-requests", type=int, help="of Ray's, default as many as ours")
    parser.add_argument("--ray-per-s", type=float, help="default as ours")
    parser.add_argument("--ray-starts", action="store_true", help="let Ray's jobs (`true`) start at once")
    parser.add_argument("--api-alone", action="store_true", help="without reconciler and Ray head")
    parser.add_argument("--starts", type=int, default=5, help="how often to start the API process")
    return parser.parse_args()


@contextmanager
def _service(folder: Path, *, api_only: bool) -> Iterator[Running]:
    with api_alone(folder) if api_only else whole_service(folder, NUM_CPUS) as running:
        yield running


def _measure_start(folder: Path, options: argparse.Namespace) -> None:
    """From starting the API process to its first answer; the first start makes the database."""
    ready_s: list[float] = []
    rss_mb: list[float] = []
    loaded: set[str] = set()
    for _ in range(options.starts):
        with api_alone(folder / "start") as running:
            held = footprint(running.api)
            ready_s.append(running.ready_s)
            rss_mb.append(held.rss_mb)
            loaded.update(held.loaded)
    if not ready_s:
        return
    print(f"API process to its first answer: {ready_s[0]:.2f} s with a new database; then {in_words(ready_s[1:], 's')}")
    print(f"API process RSS: {in_words(rss_mb, 'MB')}; of Ray and torch imported: {sorted(loaded) or 'none'}")
    is_kept = max(ready_s) <= READY_LIMIT_S and max(rss_mb) <= RSS_LIMIT_MB and not loaded
    print(f"wanted: {READY_LIMIT_S:g} s, {RSS_LIMIT_MB:g} MB, neither imported: {'kept' if is_kept else 'NOT KEPT'}")
    result = {"ready_s": ready_s, "rss_mb": rss_mb, "imported": sorted(loaded), "is_kept": is_kept}
    append_result(options.output, "submit.start", {**result, **circumstances()})


def _ours(running: Running) -> Target:
    def body(turn: int) -> bytes:
        spec = {
            "name": f"waits-{turn}",
            "entrypoint": "workers.recipes.digits:build",
            "steps": 100,
            "workers": {"min": NUM_CPUS_ASKED, "max": NUM_CPUS_ASKED},
        }
        return json.dumps(spec).encode()

    return Target(
        name="concertina",
        port=running.port,
        path="/api/v1/jobs",
        headers=_headers(running.token),
        body=body,
        expected=201,
        clear=running.clear,
    )


def _rays(rival: RayJobs, *, starts: bool) -> Target:
    def body(turn: int) -> bytes:
        asked = {} if starts else {"entrypoint_num_cpus": NUM_CPUS_ASKED}
        return json.dumps({"entrypoint": "true", "metadata": {"name": f"waits-{turn}"}, **asked}).encode()

    return Target(
        name="ray_jobs",
        port=rival.port,
        path="/api/jobs/",
        headers=_headers(rival.token),
        body=body,
        expected=200,
        clear=rival.clear,
    )


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


def _alternate(targets: list[Target], options: argparse.Namespace) -> dict[str, Answers]:
    """One block of each in turn, after a few requests that do not count."""
    for target in targets:
        _warm_up(target)
    answers = {target.name: Answers() for target in targets}
    for block in range(options.blocks):
        for target in targets:
            is_ours = target.name == "concertina"
            total = options.requests if is_ours else options.ray_requests or options.requests
            per_s = options.per_s if is_ours else options.ray_per_s or options.per_s
            size = total // options.blocks
            found = offer(target, WARM_UP + block * size, size, per_s)
            answers[target.name].add(found)
            target.clear()
            print(f"block {block + 1:3d}  {target.name:10s}  {in_words(found.seconds, 'ms', 1000)}", flush=True)
    return answers


def _warm_up(target: Target) -> None:
    deadline_s = time.monotonic() + START_S
    answers = offer(target, 0, 1, 1.0)
    while not answers.seconds:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{target.name} does not take jobs: {dict(answers.failures)}")
        time.sleep(0.5)
        answers = offer(target, 0, 1, 1.0)
    offer(target, 1, WARM_UP - 1, 10.0)
    target.clear()


def _print(answers: dict[str, Answers], ray_version: str, options: argparse.Namespace) -> None:
    print()
    for name, found in answers.items():
        print(f"{name:10s} {in_words(found.seconds, 'ms', 1000)}; failures: {dict(found.failures) or 'none'}")
    ours, rays = answers["concertina"].seconds, answers["ray_jobs"].seconds if "ray_jobs" in answers else []
    if ours and rays:
        for label, fraction, wanted in (("p50", 0.5, 5), ("p99", 0.99, 3)):
            times = percentile(rays, fraction) / percentile(ours, fraction)
            print(f"submit {label}: {times:.1f} times; wanted: {wanted}")
    about = {"versions": {**versions("fastapi", "uvicorn", "sqlalchemy"), "ray": ray_version}, **circumstances()}
    print(about)
    figures = {
        n: {"ms": spread_document([1000 * s for s in a.seconds]), "failures": dict(a.failures)}
        for n, a in answers.items()
    }
    asked = {key: str(value) for key, value in vars(options).items()}
    append_result(options.output, "submit.latency", {**about, "options": asked, **figures})


if __name__ == "__main__":
    main()

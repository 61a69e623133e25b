"""Metrics of a job with a million points, downsampled by the service: milliseconds to the whole answer, over HTTP.

    python -m tests.benchmarks.long_metrics --points 1000000 --output results.jsonl

The points come by the store's own calls, as a reconciler tells them, so that the roll-ups are written on arrival
(what that costs is printed, too); then the API's process is asked, one call at a time. In the last thousandth part
the job goes back to a checkpoint, so that a lineage is given up.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Iterator

from service.store.opening import Store
from tests.benchmarks.command import add_database, filled_api, parser_of, tell_limits, tell_result
from tests.benchmarks.figures import in_words, spread_document
from tests.benchmarks.own_service import Running
from workers.plan import PlanId
from workers.spec import parse_job_spec
from workers.status import JobSnapshot, RoundRecord, RunPhase

A_FOLD = 1000
LIMIT_MS = 200.0
BATCH = 32
SECONDS = ("data_s", "compute_s", "exchange_s", "exposed_s", "optimizer_s", "step_s")
QUERIES = {
    "loss": "keys=loss",
    "the charts of the page": "keys=loss,eval.accuracy,samples_per_s,workers&max_points=2000",
    "every key": "",
    "loss, the last tenth": "keys=loss&since_step={late}",
    "loss, 10,000 points": "keys=loss&max_points=10000",
}


def main() -> None:
    """Fill, ask and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=40, help="of each kind")
    add_database(parser)
    options = parser.parse_args()
    with filled_api(lambda store: _told(store, options.points), options.database) as (running, (job_id, fold_ms)):
        print(f"a fold of {A_FOLD} points: {in_words(fold_ms, 'ms')}", flush=True)
        asked = {what: query.format(late=options.points * 9 // 10) for what, query in QUERIES.items()}
        took_ms = {what: _ask(running, job_id, query, options.calls) for what, query in asked.items()}
    spreads = {"fold_ms": spread_document(fold_ms), "ms": tell_limits(took_ms, LIMIT_MS)}
    about = {"database": options.database, "points": options.points}
    tell_result(options.output, "metrics.long", ("fastapi", "sqlalchemy"), {**about, **spreads})


async def _told(store: Store, num_points: int) -> tuple[str, list[float]]:
    """A job with so many points that count; milliseconds of each fold."""
    fence = await store.reconciler.take_lease("benchmark", 1e6)
    assert fence is not None
    spec = {"name": "long", "entrypoint": "workers.recipes.digits:build", "steps": num_points}
    submitted = await store.jobs.submit(parse_job_spec({**spec, "batch": {"global_size": BATCH}}))
    job = await store.reconciler.admit(submitted.job, 1, fence)
    took_ms = []
    for lineage, first, last in _lineages(num_points):
        for begin in range(first, last + 1, A_FOLD):
            records = tuple(_record(lineage, r) for r in range(begin, min(begin + A_FOLD, last + 1)))
            told = JobSnapshot(job_id=job.id, attempt=1, term=1, phase=RunPhase.RUNNING, records=records)
            begin_s = time.perf_counter()
            await store.reconciler.fold(told, fence)
            took_ms.append(1000 * (time.perf_counter() - begin_s))
    await store.reconciler.release_lease(fence)
    return job.id, took_ms


def _lineages(num_points: int) -> Iterator[tuple[int, int, int]]:
    restored_at = num_points - num_points // 1000
    yield 1, 1, restored_at + num_points // 2000
    yield 2, restored_at, num_points


def _record(lineage: int, round: int) -> RoundRecord:
    noise = math.sin(round * 12.9898) * 43758.5453 % 1.0
    values = {
        "loss": 2.3 * math.exp(-round / 2e5) + 0.1 * noise,
        "lr": 1e-3,
        "global_batch": float(BATCH),
        "micro_batch": float(BATCH),
        "workers": 1.0 + (round // 50_000) % 4,
        "samples_per_s": 900.0 + 100 * noise,
        "grad_norm": 1.0 + noise,
        "loss_scale": 65536.0,
        **{name: 0.01 * (n + noise) for n, name in enumerate(SECONDS, 1)},
        "wire_bytes": 123_456.0,
        "memory_bytes": 5e8,
        "noise_scale": 30.0 + noise,
        "user.accuracy": 1 - noise / 2,
    }
    if round % 100 == 0:
        values["eval.accuracy"] = 1 - math.exp(-round / 3e5)
    return RoundRecord(
        lineage=lineage,
        round=round,
        generation=1,
        plan_id=PlanId(1, 1),
        cursor=round * BATCH,
        samples=BATCH,
        time=1.8e9 + round,
        values=values,
    )


def _ask(running: Running, job_id: str, query: str, num_calls: int) -> list[float]:
    """Milliseconds of each call, over one connection, after one that does not count."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    took_ms = []
    for _ in range(num_calls + 1):
        begin_s = time.perf_counter()
        path = f"/api/v1/jobs/{job_id}/metrics?{query}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {running.token}", "Accept-Encoding": "gzip"})
        response = connection.getresponse()
        body = response.read()
        took_ms.append(1000 * (time.perf_counter() - begin_s))
        if response.status != 200:
            raise RuntimeError(f"GET {path} answered {response.status}: {body[:200]!r}")
    connection.close()
    return took_ms[1:]


if __name__ == "__main__":
    main()

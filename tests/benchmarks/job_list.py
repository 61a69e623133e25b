"""The list of 100,000 jobs over REST: milliseconds to a page, for each filter, at the beginning and in the middle.

python -m tests.benchmarks.job_list --jobs 100000 --output results.jsonl
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, insert, select

from service.ids import IdSource
from service.states import JobState
from service.store.opening import Store
from service.store.schema import job_labels, jobs
from tests.benchmarks.command import add_database, filled_api, parser_of, tell_limits, tell_result
from tests.benchmarks.own_service import Running
from workers.spec import parse_job_spec

LIMIT_MS = 150.0
LARGE_PAGE = 500
LARGE = f"page_size={LARGE_PAGE}"
A_BATCH = 2000
SHARES = {"SUCCEEDED": 700, "FAILED": 200, "CANCELLED": 90, "QUEUED": 9, "RUNNING": 1}
"""Of a thousand jobs."""
QUERIES = {
    "all": "",
    "all, 500 a page": LARGE,
    "one state, many jobs": "state=FAILED",
    "one state, few jobs": "state=RUNNING",
    "four states": "state=FAILED%2CCANCELLED%2CQUEUED%2CRUNNING",
    "a label, many jobs": "label=team%3Dvision",
    "a label, few jobs": "label=run%3D77",
    "two labels": "label=team%3Dvision&label=run%3D77",
    "a label and a state": "label=team%3Dvision&state=RUNNING",
    "a label and a search": "label=team%3Dvision&search=7777",
    "a name, many jobs": "name=digits",
    "a name and a state": "name=digits&state=RUNNING",
    "a name and a label": "name=digits&label=team%3Dvision",
    "a search, many jobs": "search=gpt",
    "a search, few jobs": "search=77777",
    "a search, none": "search=nothing-like-it",
    "a search and states": "search=77777&state=FAILED%2CSUCCEEDED",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """One connection to the service."""

    connection: http.client.HTTPConnection
    token: str

    def page(self, query: str, token: str | None) -> tuple[float, dict[str, Any]]:
        """Milliseconds to a page, and the page."""
        path = f"/api/v1/jobs?{query}" + (f"&page_token={token}" if token else "")
        begin_s = time.perf_counter()
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        response = self.connection.getresponse()
        body = response.read()
        took_ms = 1000 * (time.perf_counter() - begin_s)
        if response.status != 200:
            raise RuntimeError(f"GET {path} answered {response.status}: {body[:200]!r}")
        found: dict[str, Any] = json.loads(body)
        return took_ms, found


def main() -> None:
    """Fill, ask and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--pages", type=int, default=20, help="pages of each kind, at the beginning and in the middle")
    add_database(parser)
    options = parser.parse_args()
    with filled_api(lambda store: _add_jobs(store, options.jobs), options.database) as (running, _):
        took_ms = {what: _walk(running, query, options) for what, query in QUERIES.items()}
    figures = {"database": options.database, "jobs": options.jobs, "ms": tell_limits(took_ms, LIMIT_MS)}
    tell_result(options.output, "jobs.list", ("fastapi", "sqlalchemy"), figures)


def _walk(running: Running, query: str, options: argparse.Namespace) -> list[float]:
    """Milliseconds of the first pages, and of as many in the middle of all jobs where the list reaches so far."""
    caller = Caller(http.client.HTTPConnection("127.0.0.1", running.port, timeout=60), running.token)
    took_ms: list[float] = []
    token: str | None = None
    for _ in range(options.pages):
        ms, page = caller.page(query, token)
        took_ms.append(ms)
        token = page["next_page_token"]
    large = query if query == LARGE else f"{query}&{LARGE}"
    token = None
    for _ in range(options.jobs // 2 // LARGE_PAGE):
        _, page = caller.page(large, token)
        token = page["next_page_token"]
        if token is None:
            break
    else:
        for _ in range(options.pages):
            ms, page = caller.page(query, token)
            took_ms.append(ms)
            token = page["next_page_token"]
    caller.connection.close()
    return took_ms


async def _add_jobs(store: Store, num_jobs: int) -> None:
    """Jobs like one that was submitted, with states, names and labels as an installation has them after a year."""
    spec = {"name": "digits", "entrypoint": "workers.recipes.digits:build", "steps": 1000}
    first = (await store.jobs.submit(parse_job_spec(spec))).job
    dice, ids = random.Random(0), IdSource()
    states = dice.choices(list(SHARES), list(SHARES.values()), k=num_jobs)

    def add(conn: Connection, begin: int, end: int) -> None:
        given = dict(conn.execute(select(jobs).where(jobs.c.id == first.id)).mappings().one())
        rows, labels = [], []
        for n in range(begin, end):
            job_id = ids.job_id(first.created_at + 60 * n)
            name = "digits" if n % 3 else f"gpt-{n}"
            text = given["spec"].replace('"seed":0', f'"seed":{n}')
            state = JobState(states[n])
            rows.append({**given, "id": job_id, "name": name, "state": state, "spec": text, "bundle_id": None})
            labels.append({"job_id": job_id, "key": "team", "value": "vision" if n % 2 else "text"})
            labels.append({"job_id": job_id, "key": "run", "value": str(n // 10)})
        conn.execute(insert(jobs), rows)
        conn.execute(insert(job_labels), labels)

    for begin in range(0, num_jobs, A_BATCH):
        end = min(begin + A_BATCH, num_jobs)
        await store.database.write_quietly(partial(add, begin=begin, end=end))


if __name__ == "__main__":
    main()

"""2000 submissions within 60 s to the whole service, as it comes: how many are accepted, and found again afterwards.

    python -m tests.benchmarks.submissions --requests 2000 --seconds 60 --output results.jsonl

The jobs ask for more CPUs than there are, so that they wait: what is counted is taking them in, while the reconciler
looks through its queue and the list is read once a second.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from service.client import Client
from tests.benchmarks.command import WHOLE, parser_of, tell_result, temporary_service
from tests.benchmarks.figures import in_words, spread_document
from tests.benchmarks.offered_load import Target, offer
from tests.benchmarks.own_service import Running, footprint

NUM_CPUS = 1


def main() -> None:
    """Offer the load, count and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0, help="in which they leave, evenly")
    options = parser.parse_args()
    with temporary_service(NUM_CPUS) as running:
        with _listing(running) as lists_s:
            begin_s = time.monotonic()
            answers = offer(_target(running), 0, options.requests, options.requests / options.seconds)
            took_s = time.monotonic() - begin_s
        with Client(f"http://127.0.0.1:{running.port}", running.token) as client:
            stored = {job["name"] for job in client.jobs()}
        rss_mb = footprint(running.api).rss_mb
    lost = {f"many-{n}" for n in range(options.requests)} - stored
    print(f"{len(answers.seconds)} of {options.requests} accepted (201) in {took_s:.1f} s, {len(lost)} not found after")
    print(f"others: {dict(answers.failures) or 'none'}; answered in {in_words(answers.seconds, 'ms', 1000)}")
    print(f"a page of the list meanwhile: {in_words(lists_s, 'ms', 1000)}; RSS of the API {rss_mb:.0f} MB")
    counts = {"requests": options.requests, "accepted": len(answers.seconds), "lost": len(lost), "took_s": took_s}
    figures = {**counts, "failures": dict(answers.failures), "ms": spread_document([1000 * s for s in answers.seconds])}
    tell_result(options.output, "submit.many", WHOLE, figures)


def _target(running: Running) -> Target:
    def body(turn: int) -> bytes:
        spec = {"name": f"many-{turn}", "entrypoint": "workers.recipes.digits:build", "steps": 100, "workers": 8}
        return json.dumps(spec).encode()

    return Target(
        name="concertina",
        port=running.port,
        path="/api/v1/jobs",
        headers={"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"},
        body=body,
        expected=201,
        clear=running.clear,
    )


@contextmanager
def _listing(running: Running) -> Iterator[list[float]]:
    """Meanwhile somebody reads the list once a second; the seconds of each answer."""
    took_s: list[float] = []
    has_ended = threading.Event()

    def read() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        while not has_ended.wait(1.0):
            begin_s = time.monotonic()
            connection.request("GET", "/api/v1/jobs", headers={"Authorization": f"Bearer {running.token}"})
            connection.getresponse().read()
            took_s.append(time.monotonic() - begin_s)
        connection.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield took_s
    finally:
        has_ended.set()
        thread.join()


if __name__ == "__main__":
    main()

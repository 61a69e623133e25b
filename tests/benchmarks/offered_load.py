"""An open-loop load: requests leave at fixed times, whether or not earlier ones were answered."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HOST = "127.0.0.1"
NUM_CONNECTIONS = 8
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to POST to. ``body(i)`` is the i-th request's body; ``expected`` the status of success.

    ``clear`` takes back what was asked for, so that it does not weigh on who comes next.
    """

    name: str
    port: int
    path: str
    headers: Mapping[str, str]
    body: Callable[[int], bytes]
    expected: int
    clear: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class Answers:
    """Seconds from the moment a request was due (not: could be sent) to its whole answer; other outcomes counted."""

    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, more: Answers) -> None:
        """Take another block's answers in."""
        self.seconds += more.seconds
        self.failures.update(more.failures)


def offer(target: Target, first: int, num_requests: int, per_s: float) -> Answers:
    """POST ``num_requests`` bodies from the ``first`` on at ``per_s``, over a few connections that stay open."""
    answers, guard = Answers(), threading.Lock()
    turns = itertools.count()
    begin_s = time.monotonic() + 0.1

    def send() -> None:
        connection = http.client.HTTPConnection(HOST, target.port, timeout=TIMEOUT_S)
        while (turn := next(turns)) < num_requests:
            due_s = begin_s + turn / per_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            outcome = _post(connection, target, first + turn)
            took_s = time.monotonic() - due_s
            with guard:
                if outcome is None:
                    answers.seconds.append(took_s)
                else:
                    answers.failures[outcome] += 1
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(NUM_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _post(connection: http.client.HTTPConnection, target: Target, turn: int) -> str | None:
    """None for the expected status, else what came instead."""
    try:
        connection.request("POST", target.path, target.body(turn), dict(target.headers))
        response = connection.getresponse()
        text = response.read()
    except OSError as error:
        connection.close()
        return type(error).__name__
    return None if response.status == target.expected else f"{response.status} {text[:200].decode(errors='replace')}"

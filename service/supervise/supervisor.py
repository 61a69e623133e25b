"""Keeps three processes running, each on its own: the API, the reconciler and Ray's head.

One that hangs is replaced as one that ended.
"""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from service.supervise.child import Child, Ended
from service.supervise.ray_head import HeadEvent, HeadNews, RayHead

TICK_S = 0.2
START_LIMIT_S = 60.0
LONG_S = 3.0  # three times what a start takes
MAX_ENDS_BEFORE_READY = 3
SAVE_LIMIT_S = 45.0  # the reconciler lets running jobs save for 30 s, and needs a little to tell them
API_END_LIMIT_S = 8.0
EMPTY = "empty"
PROBE_TIMEOUT_S = 0.5  # the socket accepts before the API is there, so an early question is never answered


class Mark(StrEnum):
    """What kind of news a line is."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


Say: TypeAlias = Callable[[Mark, str, str], None]
"""Tells a person: mark, what it is about (``api``, ``Ray``), a short sentence."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the API answers from this machine; ``trust`` is in its certificate, None where it does no TLS."""

    host: str
    port: int
    trust: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self.trust is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def status(self, path: str) -> int | None:
        """The HTTP status of a GET, None where nobody answers in time."""
        connection = (
            http.client.HTTPConnection(self.host, self.port, timeout=PROBE_TIMEOUT_S)
            if self.trust is None
            else http.client.HTTPSConnection(self.host, self.port, timeout=PROBE_TIMEOUT_S, context=self.trust)
        )
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is supervised. ``head`` is None where a Ray of somebody else's is used."""

    address: Address
    api: Child
    reconciler: Child
    head: RayHead | None


class Supervisor:
    """Runs the parts until it is told to stop; `run` belongs to the main thread, which gets the signals."""

    def __init__(self, parts: Parts, say: Say, on_ready: Callable[[], None]) -> None:
        self._parts = parts
        self._say = say
        self._on_ready = on_ready
        self._num_stops = 0
        self._num_ends_before_ready = 0
        self._is_ready = False
        self._told_of_wait = ""

    def run(self) -> int:
        """Start, look after and end the parts; gives the exit code."""
        # What is ignored stays so: under `nohup` the end of the terminal is none of ours.
        numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            exit_code = self._loop()
            self._stop()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return exit_code

    @property
    def is_stopping(self) -> bool:
        return self._num_stops > 0

    def request_stop(self) -> None:
        """End `run` in order; any thread. Asked a second time, it no longer waits for jobs to save."""
        # Called from a signal handler: it takes no lock, which the interrupted thread may hold.
        self._num_stops += 1

    def _on_signal(self, number: int, frame: object) -> None:
        self.request_stop()

    def _loop(self) -> int:
        begin_s = time.monotonic()
        self._parts.api.start(begin_s)
        while not self._num_stops:
            now_s = time.monotonic()
            self._tick(now_s)
            if not self._is_ready and self._parts.address.status("/livez") == 200:
                self._become_ready(now_s)
            if not self._is_ready and now_s - begin_s > LONG_S:
                self._tell_of_wait()
            is_late = now_s - begin_s > START_LIMIT_S
            if not self._is_ready and (is_late or self._num_ends_before_ready >= MAX_ENDS_BEFORE_READY):
                return self._fail_to_start()
            time.sleep(TICK_S)
        return 0

    def _become_ready(self, now_s: float) -> None:
        self._is_ready = True
        self._say(Mark.OK, "api", f"{self._parts.address.url} (process {self._parts.api.pid})")
        # Only now: the API has brought the database to this version.
        self._parts.reconciler.start(now_s)
        self._say(Mark.OK, "reconciler", f"process {self._parts.reconciler.pid}")
        self._on_ready()

    def _tell_of_wait(self) -> None:
        """Once, and of an empty log twice: whoever mistyped a password should not wait for the end of all patience."""
        if self._told_of_wait in ("", EMPTY):
            lines = self._parts.api.last_words(1)
            told = _in_words(lines[-1]) if lines else EMPTY
            if told != self._told_of_wait:
                self._told_of_wait = told
                self._say(Mark.NOTE, "api", f"not up yet; its log: {told}")

    def _fail_to_start(self) -> int:
        api = self._parts.api
        self._say(Mark.FAIL, "api", f"it did not come up; the end of {api.log_file}:")
        for line in api.last_words(15):
            self._say(Mark.NOTE, "", line)
        return 5

    def _tick(self, now_s: float) -> None:
        news = self._parts.head.tick(now_s) if self._parts.head else None
        if news:
            self._tell_of_head(news)
        for child in (self._parts.api, self._parts.reconciler):
            before = child.pid
            ended = child.tick(now_s)
            if ended:
                self._num_ends_before_ready += 1
                self._say(Mark.WARN, child.name, _obituary(ended, str(child.log_file)))
            elif before is None and child.pid is not None:
                self._say(Mark.OK, child.name, f"started again (process {child.pid})")

    def _tell_of_head(self, news: HeadNews) -> None:
        match news.event:
            case HeadEvent.STARTING:
                self._say(Mark.NOTE, "Ray", f"starting ({news.detail})")
            case HeadEvent.UP:
                self._say(Mark.OK, "Ray", f"up: {news.detail}")
            case HeadEvent.FOUND:
                self._say(Mark.OK, "Ray", f"found running, taken over: {news.detail}")
            case HeadEvent.LOST:
                self._say(Mark.WARN, "Ray", f"lost: {news.detail}")

    def _stop(self) -> None:
        parts = self._parts
        self._num_stops = max(1, self._num_stops)
        if not parts.reconciler.has_ended():
            what = "running jobs save (30 s at most)" if parts.head else "jobs go on without the service"
            self._say(Mark.NOTE, "stopping", what)
        self._end(parts.reconciler, SAVE_LIMIT_S)
        self._end(parts.api, API_END_LIMIT_S)
        if parts.head and not parts.head.stop():
            self._say(Mark.WARN, "Ray", "some of its processes had to be killed")
        self._say(Mark.OK, "stopped", "the next `concertina serve` goes on")

    def _end(self, child: Child, limit_s: float) -> None:
        child.terminate()
        deadline_s = time.monotonic() + limit_s
        while not child.has_ended() and time.monotonic() < deadline_s and self._num_stops < 2:
            time.sleep(TICK_S)
        if not child.has_ended():
            self._say(Mark.WARN, child.name, "did not end by itself; killed")
        child.kill()


def _in_words(line: str) -> str:
    """A line of a log, which may be one of structlog's documents."""
    try:
        told = json.loads(line)
        return f"{told['event']}: {told['error']}"
    except (ValueError, TypeError, KeyError):
        return line


def _obituary(ended: Ended, log: str) -> str:
    if ended.silent_s is not None:
        how = f"gave no sign of life for {ended.silent_s:.0f} s and was killed"
    elif ended.exit_code < 0:
        how = f"was killed by {signal.Signals(-ended.exit_code).name}"
    else:
        how = f"ended with exit code {ended.exit_code}"
    return f"process {ended.pid} {how}; started again in {ended.pause_s:.1f} s (log: {log})"

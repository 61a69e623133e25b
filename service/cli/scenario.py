"""What the demonstration does to its job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
from rich.markup import escape

from service import words
from service.cli.conclusion import conclude
from service.cli.follow import ENDED, JobView
from service.cli.output import say
from service.client import Client

LOOK_EVERY_S = 0.5
START_LIMIT_S = 180.0
CHANGE_LIMIT_S = 90.0
END_LIMIT_S = 1800.0
MAX_POINTS = 10_000


class ScenarioError(Exception):
    """The demonstration cannot go on; the message says at what."""


class Scenario:
    """Plays on one job.

    ``begin_s`` is when the command was given, by the monotonic clock; ``stretch_s`` how long each size is watched.
    """

    def __init__(self, client: Client, begin_s: float, stretch_s: float) -> None:
        self._client = client
        self._begin_s = begin_s
        self._stretch_s = stretch_s
        self._job_id = ""
        self._first_point_s: float | None = None
        self._view = JobView(client, "")

    @property
    def job(self) -> dict[str, Any]:
        """The job as it was seen last."""
        return self._view.job

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its timeline as it was seen last."""
        return self._view.rows

    @property
    def first_point_s(self) -> float | None:
        """Seconds from the command to the first point on the chart; None before that."""
        return self._first_point_s

    def play(self, spec: dict[str, Any]) -> int:
        """The whole demonstration; gives the exit code. Raises ScenarioError and what the client raises."""
        job = self._client.submit(spec)
        self._job_id = job["id"]
        self._view = JobView(self._client, self._job_id)
        self._client.scale(self._job_id, 1, "the demo starts small")
        say(f"\n[bold]▸ {escape(job['name'])}[/bold]  {self._client.url}/jobs/{self._job_id}")
        self._until("the first point of the chart", lambda: bool(self._points("loss", 2)), START_LIMIT_S)
        self._first_point_s = time.monotonic() - self._begin_s
        say(f"  first point on the chart {words.duration(self._first_point_s)} after the command")
        self._watch()
        self._resize(2, "the demo grows it")
        self._watch()
        self._lose_one()
        self._watch()
        self._resize(1, "the demo shrinks it")
        self._until("the end of the job", self._has_ended, END_LIMIT_S)
        return conclude(self._view.job, self._view.rows, self._points("global_batch", MAX_POINTS), self._why)

    def _resize(self, num_workers: int, reason: str) -> None:
        say(f"[bold]▸ {words.plural(num_workers, 'worker')}, please[/bold]")
        self._client.scale(self._job_id, num_workers, reason)
        self._until(words.plural(num_workers, "worker"), lambda: self._num_current() == num_workers, CHANGE_LIMIT_S)

    def _lose_one(self) -> None:
        pid = self._pid_of_a_worker()
        num_lost = self._num_rows("worker_lost")
        say(f"[bold]▸ kill -9 {pid}[/bold], one of the two workers")
        os.kill(pid, signal.SIGKILL)
        self._until("the loss", lambda: self._num_rows("worker_lost") > num_lost, CHANGE_LIMIT_S)
        self._until("the second worker's return", lambda: self._num_current() == 2, CHANGE_LIMIT_S)

    def _pid_of_a_worker(self) -> int:
        """The last rank's process. It runs on this machine: the demonstration has started it."""
        nodes = self._client.get("/cluster")["nodes"]
        workers = [w for node in nodes for w in node["workers"] if w["job_id"] == self._job_id]
        ranked = sorted((w for w in workers if w["rank"] is not None), key=lambda w: int(w["rank"]))
        if not ranked:
            raise ScenarioError("no worker of the job is on this machine, so none can be killed; is Ray elsewhere?")
        pid = int(ranked[-1]["pid"])
        try:
            is_worker = psutil.Process(pid).name().startswith("ray::")
        except psutil.NoSuchProcess:
            is_worker = False
        if not is_worker:
            raise ScenarioError(f"process {pid} is not a Ray worker of this machine; it is left alone")
        return pid

    def _num_current(self) -> int:
        return int(self._view.job["workers"]["current"])

    def _num_rows(self, kind: str) -> int:
        return sum(1 for row in self._view.rows if row["kind"] == kind)

    def _has_ended(self) -> bool:
        return self._view.job["state"] in ENDED

    def _watch(self) -> None:
        until_s = time.monotonic() + self._stretch_s
        self._until("the next act", lambda: time.monotonic() >= until_s, self._stretch_s + CHANGE_LIMIT_S)
        done = self._view.job["progress"]
        say(
            f"  step {words.count(done['step'])} of {words.count(done['steps'])}, loss {words.number(done['loss'])}, "
            f"{words.rate(done['samples_per_s'])} with {words.plural(self._num_current(), 'worker')}"
        )

    def _until(self, what: str, is_reached: Callable[[], bool], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while True:
            self._view.ask()
            for line in self._view.news():
                say(line)
            if is_reached():
                return
            if self._has_ended():
                state = words.state(self._view.job["state"]).lower()
                raise ScenarioError(f"the job {state} while waiting for {what}. {self._why()}")
            if time.monotonic() > deadline_s:
                raise ScenarioError(f"{what} did not come within {limit_s:.0f} s. {self._why()}")
            time.sleep(LOOK_EVERY_S)

    def _why(self) -> str:
        told = self._client.get(f"/jobs/{self._job_id}/explain")
        return " ".join(part for part in (told["summary"], *told["details"], told["remedy"]) if part)

    def _points(self, key: str, at_most: int) -> list[dict[str, Any]]:
        found = self._client.get(f"/jobs/{self._job_id}/metrics", keys=key, max_points=at_most)
        points: list[dict[str, Any]] = found["points"]
        return points

"""A service in a thread that knows jobs and trains none: tests say what its jobs have come to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tuning.remote_jobs import Json, ServiceAddress
from workers.errors import SpecError
from workers.spec import parse_job_spec


class NoJobError(Exception):
    """None of that name, or not any more."""


@dataclass
class FakeJob:
    """``reports`` are values of its metric by step, ``checkpoints`` steps; it ends at look number ``ends_at``.

    ``has_state``: it has read what it was to begin from.
    """

    id: str
    spec: Json
    state: str = "RUNNING"
    steps: int = 10
    reports: dict[int, float] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    ends_at: int | None = None
    num_looks: int = 0
    has_state: bool = False

    def document(self) -> Json:
        self.num_looks += 1
        if self.num_looks == self.ends_at:
            self.state = "SUCCEEDED"
        size = self.spec["batch"]["global_size"]
        done = self.steps if self.state == "SUCCEEDED" else max(self.reports, default=0)
        progress = {"steps": self.steps, "samples": done * size}
        return {"id": self.id, "state": self.state, "spec": self.spec, "progress": progress}


@dataclass
class FakeService:
    """Keeps jobs by their order; forgets keys at once, as the real one does after a day.

    ``reports`` and ``checkpoints`` are those that each new job has from the start. ``meanwhile`` is what happens
    between the submission of a job and its start, when it reads the state of another: at look ``starts_at``.
    """

    address: ServiceAddress
    metric: str
    jobs: list[FakeJob] = field(default_factory=list)
    reports: dict[int, float] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)
    meanwhile: Callable[[FakeJob], None] = lambda _: None
    starts_at: int = 1

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Json]:
        """Status and document of a call."""
        parts = path.removeprefix("/api/v1/jobs").strip("/").split("/")
        match method, parts:
            case "POST", ["validate" | ""]:
                return self._submitted(body, is_kept=parts == [""])
            case "GET", [""]:
                key, _, value = query["label"][0].partition("=")
                found = [job for job in reversed(self.jobs) if job.spec["labels"].get(key) == value]
                return 200, {"jobs": [job.document() for job in found[:1]]}
            case "GET", [job_id]:
                return 200, self._begun(self._job(job_id)).document()
            case "POST", [job_id, verb]:
                return self._told(self._job(job_id), verb)
            case "GET", [job_id, "metrics"]:
                since = int(query.get("since_step", ["0"])[0])
                known = sorted(self._job(job_id).reports.items())
                points = [{"step": step, "values": {self.metric: value}} for step, value in known if step >= since]
                return 200, {"keys": [self.metric] if known else [], "points": points}
            case "GET", [job_id, "checkpoints"]:
                return 200, {"checkpoints": [{"step": step} for step in self._job(job_id).checkpoints]}
            case "GET", [_, "explain"]:
                return 200, {"summary": "it waits for two CPUs", "details": [], "remedy": "free some"}
        raise AssertionError(f"nobody should call {method} {path}")

    def _submitted(self, document: Any, *, is_kept: bool) -> tuple[int, Json]:
        try:
            spec = json.loads(parse_job_spec(document).model_dump_json())
        except SpecError as error:
            faults = [{"pointer": p.pointer, "detail": p.detail} for p in error.problems]
            return 422, {"detail": "the spec is refused", "errors": faults}
        if not is_kept:
            return 200, spec
        known = FakeJob(id=f"job_{len(self.jobs)}", spec=spec, reports=self.reports, checkpoints=self.checkpoints)
        self.jobs.append(known)
        self.meanwhile(known)
        return 201, known.document()

    def _begun(self, job: FakeJob) -> FakeJob:
        """One that runs with a state, or has failed for want of it."""
        wish = job.spec["init_from"]
        if job.state == "RUNNING" and not job.has_state and job.num_looks >= self.starts_at - 1:
            of_source = next((each.checkpoints for each in self.jobs if wish and each.id == wish["job"]), [])
            job.has_state = bool(not wish or job.checkpoints or wish["step"] in of_source)
            if not job.has_state:
                job.state, job.reports = "FAILED", {}
        return job

    def _told(self, job: FakeJob, verb: str) -> tuple[int, Json]:
        if verb == "cancel" and job.state == "SUCCEEDED":
            return 409, {"detail": "a job that is SUCCEEDED cannot cancel"}
        job.commands.append(verb)
        job.state, job.has_state = {"cancel": "CANCELLED", "retry": "RUNNING"}[verb], False
        return 200, job.document()

    def _job(self, job_id: str) -> FakeJob:
        for job in self.jobs:
            if job.id == job_id:
                return job
        raise NoJobError(job_id)


@contextmanager
def fake_service(metric: str) -> Iterator[FakeService]:
    """One that answers until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            url = urlsplit(self.path)
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "null")
            try:
                status, document = service.answer(self.command, url.path, parse_qs(url.query), body)
            except NoJobError as error:
                status, document = 404, {"detail": f"there is no job {error}"}
            text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service = FakeService(ServiceAddress(url=f"http://127.0.0.1:{server.server_port}", token="t"), metric)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()

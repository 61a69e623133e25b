"""A thin client of the REST interface: bounded waits, retries only where repeating does no harm."""

from __future__ import annotations

import re
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from urllib.parse import quote

import httpx2

from service.client_errors import (
    AddressError,
    AmbiguousError,
    ClientError,
    MovedError,
    NotThereError,
    RefusedError,
    StrangerError,
    UnreachableError,
)
from service.version import service_version

__all__ = ["AmbiguousError", "Client", "ClientError", "Json", "NotThereError", "RefusedError", "UnreachableError"]

Json: TypeAlias = dict[str, Any]

API = "/api/v1"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
TRANSFER_TIMEOUT_S = 300.0
RETRY_PAUSES_S = (0.2, 0.6, 1.5)
MAX_RETRY_AFTER_S = 5.0
_PASSING_STATUS = frozenset({429, 502, 503, 504})
PAGE_SIZE = 200


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log: ``next_offset`` is where the next one begins."""

    text: str
    next_offset: int


class _Document(Json):
    """What the service at ``url`` told; raises StrangerError for a key that it should have and lacks."""

    def __init__(self, document: Json, url: str) -> None:
        super().__init__(document)
        self._url = url

    def __missing__(self, key: str) -> NoReturn:
        raise StrangerError(self._url, f"its answer has no {key!r}")


class Client:
    """Speaks to one service. Close it, or use it as a context manager. Not for several threads at once.

    ``trust`` says which certificates are believed; None: those of authorities that everybody knows.
    Raises AddressError for a ``url`` that cannot be called.
    """

    def __init__(
        self, url: str, token: str, trust: ssl.SSLContext | None = None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.url = url.rstrip("/")
        self._sleep = sleep
        try:
            base_url = httpx2.URL(f"{self.url}{API}")
        except httpx2.InvalidURL as error:
            raise AddressError(url, str(error)) from None
        self._http = httpx2.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": f"concertina/{service_version()}"},
            timeout=httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            verify=True if trust is None else trust,
            trust_env=False,  # a proxy for the internet is not the way to a service on this machine
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # Jobs

    def submit(self, spec: Json, key: str | None = None) -> Json:
        """Submit a job once: with the same key a repeated call answers with the same job."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._json("POST", "/jobs", json=spec, headers=headers, is_repeatable=True)

    def validate(self, spec: Json) -> Json:
        """The resolved spec; raises RefusedError with what is wrong with it."""
        return self._json("POST", "/jobs/validate", json=spec, is_repeatable=True)

    def upload(self, data: bytes) -> Json:
        """Store a bundle; the same bytes give the same id."""
        headers = {"Content-Type": "application/zip"}
        return self._json(
            "POST", "/bundles", content=data, headers=headers, timeout=TRANSFER_TIMEOUT_S, is_repeatable=True
        )

    def jobs(self, state: str | None = None, label: str | None = None, search: str | None = None) -> Iterator[Json]:
        """All jobs, newest first, fetched page by page; ``search`` is part of a name or the beginning of an id."""
        return self.pages("/jobs", "jobs", state=state, label=label, search=search)

    def find_job(self, reference: str) -> Json:
        """The job with that id, the newest with that name, or the one whose id begins so.

        Raises NotThereError, AmbiguousError.
        """
        if re.fullmatch(r"[\w-]+", reference, flags=re.ASCII):
            try:
                return self.job(reference)
            except RefusedError as error:
                if error.status not in (404, 422):
                    raise
        found = _newest(self.jobs(search=reference), reference)
        if found is None:
            raise NotThereError(f"there is no job {reference!r}; `concertina jobs` lists them")
        return found

    def job(self, job_id: str) -> Json:
        """One job by its whole id."""
        return self.get(f"/jobs/{job_id}")

    def command(self, job_id: str, verb: str, **params: Any) -> Json:
        """``cancel``, ``pause``, ``resume`` or ``retry`` a job."""
        repeatable = verb != "retry"  # repeated after it has taken effect, it would be refused
        return self._json("POST", f"/jobs/{job_id}/{verb}", params=_given(params), is_repeatable=repeatable)

    def scale(self, job_id: str, workers: int | str | Json, reason: str | None) -> Json:
        """Set the number of workers: a number, ``{"min": ..., "max": ...}`` or ``"auto"``."""
        body = {"workers": workers, **({"reason": reason} if reason else {})}
        return self._json("PUT", f"/jobs/{job_id}/scale", json=body)

    def find_node(self, reference: str) -> Json:
        """The living node with that id or name, or the one whose id begins so.

        Raises NotThereError, AmbiguousError.
        """
        alive: list[Json] = [node for node in self.get("/cluster")["nodes"] if node["is_alive"]]
        exact = [node for node in alive if node["id"] == reference]
        found = exact or [node for node in alive if node["name"] == reference or node["id"].startswith(reference)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(f"{node['id'][:12]} ({node['name']})" for node in found[:5])
            raise AmbiguousError(f"{reference!r} means {len(found)} nodes: {ids}; give more of the id")
        raise NotThereError(f"there is no living node {reference!r}; `concertina cluster` lists them")

    def mark_node(self, node_id: str, verb: str, reason: str | None) -> Json:
        """Say ``drain``, ``quarantine`` or ``uncordon`` of a node; the cluster after it."""
        path = f"/cluster/nodes/{quote(node_id, safe='')}/{verb}"
        return self._json("POST", path, json={"reason": reason or ""}, is_repeatable=True)

    def timeline(self, job_id: str, after: int = 0) -> list[Json]:
        """What changed while the job ran, oldest first, to its end; only rows after the given ``seq``."""
        rows: list[Json] = []
        while page := self.get(f"/jobs/{job_id}/timeline", after=rows[-1]["seq"] if rows else after)["timeline"]:
            rows += page
        return rows

    def logs(
        self, job_id: str, *, rank: int | None = None, tail: int | None = None, offset: int | None = None
    ) -> LogPart:
        """A piece of the log of one rank (or of all)."""
        answer = self._request(
            "GET", f"/jobs/{job_id}/logs", params=_given({"rank": rank, "tail": tail, "offset": offset})
        )
        following = answer.headers.get("x-next-offset")
        return LogPart(answer.text, int(following) if following else (offset or 0) + len(answer.content))

    def download(self, path: str, target: Path) -> int:
        """Write what a GET answers to a file, whole or not at all; gives its bytes."""
        part = target.with_name(target.name + ".part")
        try:
            with self._http.stream("GET", path, timeout=TRANSFER_TIMEOUT_S) as answer, part.open("wb") as file:
                if answer.status_code >= 300:
                    answer.read()
                    raise self._failure(answer)
                file.writelines(answer.iter_bytes())
            part.replace(target)
        except httpx2.TransportError as error:
            raise UnreachableError(self.url, _why(error)) from None
        finally:
            part.unlink(missing_ok=True)
        return target.stat().st_size

    # Sweeps

    def submit_sweep(self, spec: Json) -> Json:
        """Make a sweep, which runs at once."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._json("POST", "/sweeps", json=spec, headers=headers, is_repeatable=True)

    def ask_sweep(self, question: str, spec: Json) -> Json:
        """``validate`` gives the resolved spec, ``estimate`` its cost; raises RefusedError with what is wrong."""
        return self._json("POST", f"/sweeps/{question}", json=spec, is_repeatable=True)

    def sweeps(self, search: str | None = None) -> Iterator[Json]:
        """All sweeps, newest first, fetched page by page; ``search`` is part of a name or beginning of an id."""
        return self.pages("/sweeps", "sweeps", search=search)

    def find_sweep(self, reference: str) -> Json:
        """The newest sweep with that name, or the one whose id is or begins so.

        Raises NotThereError, AmbiguousError.
        """
        found = _newest(self.sweeps(search=reference), reference)
        if found is None:
            raise NotThereError(f"there is no sweep {reference!r}; `concertina sweep list` lists them")
        return found

    def sweep_trials(self, sweep_id: str, state: str | None = None) -> Iterator[Json]:
        """Its trials by number, fetched page by page."""
        return self.pages(f"/sweeps/{sweep_id}/trials", "trials", state=state)

    def command_sweep(self, sweep_id: str, verb: str) -> Json:
        """``pause``, ``resume``, ``stop`` or ``retry-failed``."""
        # The last, repeated after it has taken effect, would be refused.
        return self._json("POST", f"/sweeps/{sweep_id}/{verb}", is_repeatable=verb != "retry-failed")

    def extend_sweep(self, sweep_id: str, num_trials: int) -> Json:
        """Allow so many trials in all."""
        return self._json("POST", f"/sweeps/{sweep_id}/extend", json={"trials": num_trials})

    def promote_sweep(self, sweep_id: str, configuration: str | None) -> Json:
        """Hold its winner against a configuration; None: the one that the sweep names."""
        return self._json("POST", f"/sweeps/{sweep_id}/promote", json=_given({"configuration": configuration}))

    # Schedules

    def schedules(self, search: str | None = None) -> Iterator[Json]:
        """All schedules, newest first, fetched page by page; ``search`` is part of a name or beginning of an id."""
        return self.pages("/schedules", "schedules", search=search)

    def schedule_runs(self, schedule_id: str) -> Iterator[Json]:
        """What became of nominal times, the latest first, fetched page by page."""
        return self.pages(f"/schedules/{schedule_id}/runs", "runs")

    def find_schedule(self, reference: str) -> Json:
        """The schedule with that name, or the one whose id is or begins so.

        Raises NotThereError, AmbiguousError.
        """
        found = _newest(self.schedules(search=reference), reference)
        if found is None:
            raise NotThereError(f"there is no schedule {reference!r}; `concertina schedule list` lists them")
        return found

    def create_schedule(self, spec: Json) -> Json:
        """Make a schedule."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._json("POST", "/schedules", json=spec, headers=headers, is_repeatable=True)

    def validate_schedule(self, spec: Json) -> Json:
        """The resolved spec, nothing is made; raises RefusedError with what is wrong."""
        return self._json("POST", "/schedules/validate", json=spec, is_repeatable=True)

    def replace_schedule(self, schedule_id: str, spec: Json) -> Json:
        """Exchange the whole spec."""
        return self._json("PUT", f"/schedules/{schedule_id}", json=spec)

    def command_schedule(self, schedule_id: str, verb: str) -> Json:
        """``pause``, ``resume`` or ``trigger``; the last answers with a run."""
        headers = {"Idempotency-Key": uuid.uuid4().hex} if verb == "trigger" else {}
        return self._json("POST", f"/schedules/{schedule_id}/{verb}", headers=headers, is_repeatable=True)

    def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule with its history."""
        self._json("DELETE", f"/schedules/{schedule_id}")

    # Anything

    def pages(self, path: str, name: str, **params: Any) -> Iterator[Json]:
        """All of a list under ``/api/v1``, fetched page by page; ``name`` is the key that it has in an answer."""
        asked = _given({"page_size": PAGE_SIZE, **params})
        while True:
            page = self.get(path, **asked)
            yield from page[name]
            if not page.get("next_page_token"):
                return
            asked["page_token"] = page["next_page_token"]

    def get(self, path: str, **params: Any) -> Json:
        """GET a path under ``/api/v1``; parameters that are None are left out."""
        return self._json("GET", path, params=_given(params))

    def put(self, path: str, document: Json) -> Json:
        """PUT a document to a path under ``/api/v1``; what is there then."""
        return self._json("PUT", path, json=document)

    def delete(self, path: str) -> None:
        """DELETE what is at a path under ``/api/v1``."""
        self._json("DELETE", path)

    def is_alive(self) -> bool:
        """Whether the API answers at all; never raises for a service that is away."""
        return self._status("/livez") == 200

    def is_ready(self) -> bool:
        """Whether the API says that the service is ready."""
        return self._status("/readyz") == 200

    def _status(self, path: str) -> int | None:
        try:
            return self._http.get(f"{self.url}{path}", timeout=CONNECT_TIMEOUT_S).status_code
        except httpx2.TransportError:
            return None

    def _json(self, method: str, path: str, **request: Any) -> Json:
        answer = self._request(method, path, **request)
        try:
            document = answer.json() if answer.content else {}
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise StrangerError(self.url, f"it sent {answer.text[:40]!r} where a JSON object is due")
        return _Document(document, self.url)

    def _request(self, method: str, path: str, *, is_repeatable: bool | None = None, **request: Any) -> httpx2.Response:
        repeatable = method in ("GET", "PUT", "DELETE") if is_repeatable is None else is_repeatable
        for pause_s in (*(RETRY_PAUSES_S if repeatable else ()), None):
            try:
                answer = self._http.request(method, path, **request)
            except httpx2.TransportError as error:
                if pause_s is None:
                    raise UnreachableError(self.url, _why(error)) from None
            else:
                if answer.status_code < 300:
                    return answer
                if pause_s is None or answer.status_code not in _PASSING_STATUS:
                    raise self._failure(answer)
                pause_s = max(pause_s, _retry_after_s(answer))
            self._sleep(pause_s)
        raise AssertionError("the last try either answers or raises")

    def _failure(self, answer: httpx2.Response) -> ClientError:
        if answer.status_code >= 400:
            return _refusal(answer)
        location = answer.headers.get("location", "nowhere")
        target, is_api, _ = location.partition(API)
        if is_api and target.startswith("http"):
            return MovedError(self.url, target)
        return StrangerError(self.url, f"it redirects to {location[:200]}")


def _newest(found: Iterator[Json], reference: str) -> Json | None:
    """Of things that come newest first, the first with that name, or the one whose id begins so.

    Raises AmbiguousError.
    """
    by_prefix: list[Json] = []
    for each in found:
        if each["name"] == reference:
            return each
        if str(each["id"]).startswith(reference):
            by_prefix.append(each)
    if len(by_prefix) > 1:
        ids = ", ".join(f"{each['id']} ({each['name']})" for each in by_prefix[:5])
        raise AmbiguousError(f"{reference!r} begins {len(by_prefix)} ids: {ids}; give more of it")
    return by_prefix[0] if by_prefix else None


def _given(params: Mapping[str, Any]) -> Json:
    return {key: value for key, value in params.items() if value is not None}


def _retry_after_s(answer: httpx2.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), MAX_RETRY_AFTER_S) if text.isdigit() else 0.0


def _refusal(answer: httpx2.Response) -> RefusedError:
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {"title": answer.reason_phrase, "detail": f"status {answer.status_code}: {answer.text[:300]}"}
    return RefusedError(answer.status_code, document)


def _why(error: httpx2.TransportError) -> str:
    return str(error) or type(error).__name__

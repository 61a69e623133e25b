"""Jobs of a running service, by its REST interface: what a process on somebody else's Ray needs of it.

The command line's client is the service's, which nothing here may import. Each call has a bound, and is repeated
within it while the service is away: a restart of it must not end a search that has run for hours.
"""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx2

from workers.errors import JobError

Json: TypeAlias = dict[str, Any]

DEFAULT_URL = "http://127.0.0.1:8420"
CONNECT_S, READ_S = 5.0, 30.0
PAUSE_S, MAX_PAUSE_S = 0.2, 5.0
MAX_POINTS = 10_000
MAX_TOLD_PROBLEMS = 20
_PASSING_STATUS = frozenset({429, 502, 503, 504})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class ServiceError(JobError):
    """The service cannot be used, or says that something cannot be done; the message is for a person."""


class ServiceAwayError(ServiceError):
    """Nobody answered within the bound."""


class GoneError(ServiceError):
    """There is no such thing (any more)."""


class ConflictError(ServiceError):
    """The thing is not in a state for that."""


_ERRORS: Mapping[int, type[ServiceError]] = {404: GoneError, 409: ConflictError}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """Where a service answers. ``authority`` is PEM text of who signed its certificate, None for those known."""

    url: str
    token: str = field(repr=False)
    authority: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedPoint:
    """A value of one telemetry key after ``step`` optimizer steps of the job."""

    step: int
    value: float


def service_address(
    url: str | None = None, token: str | None = None, environ: Mapping[str, str] | None = None
) -> ServiceAddress:
    """The service that is meant, as for the command line: ``CONCERTINA_URL, _TOKEN, _CA_FILE, _HOME``.

    Reads the environment of the process that asks, which is the user's own and none of the service's. Without a
    token the file of this machine's service counts, for a service on this machine only. Raises ServiceError.
    """
    variables = os.environ if environ is None else environ
    address = (url or variables.get("CONCERTINA_URL") or DEFAULT_URL).rstrip("/")
    file = variables.get("CONCERTINA_CA_FILE")
    try:
        authority = Path(file).expanduser().read_text() if file else None
    except OSError as error:
        raise ServiceError(f"CONCERTINA_CA_FILE={file} cannot be read ({error.strerror}); name a PEM file") from None
    known = (token or variables.get("CONCERTINA_TOKEN") or _own_token(address, variables)).strip()
    if not (known.isascii() and known.isprintable()):
        raise ServiceError(
            "the token has characters that no token has; give `token` or CONCERTINA_TOKEN as it was made"
        )
    return ServiceAddress(url=address, token=known, authority=authority)


def _own_token(address: str, variables: Mapping[str, str]) -> str:
    home = Path(variables.get("CONCERTINA_HOME") or "~/.concertina").expanduser()
    if urlsplit(address).hostname in _LOOPBACK:
        try:
            return (home / "token").read_text().strip()
        except OSError:
            pass
    raise ServiceError(
        f"no token for {address}: start the service with `concertina serve` (it makes one in {home}), "
        "or give `token` or CONCERTINA_TOKEN"
    )


class RemoteJobs:
    """Jobs of one service. Close it. Not for several threads at once.

    ``within_s`` of a call is how long it may last in all, tries while nobody answers included. Every call raises
    ServiceAwayError past that, and where the service refuses ServiceError (or one of its kinds) with its words.
    """

    def __init__(
        self,
        address: ServiceAddress,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._sleep, self._clock = address, sleep, clock
        self._http = httpx2.Client(
            base_url=f"{address.url}/api/v1",
            headers={"Authorization": f"Bearer {address.token}"},
            verify=True if address.authority is None else ssl.create_default_context(cadata=address.authority),
            trust_env=False,  # a proxy for the internet is not the way to a service near by
        )

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def check(self, within_s: float) -> None:
        """Return where the service answers and takes the token."""
        self._call("GET", "/version", within_s)

    def resolved(self, spec: Json, within_s: float) -> Json:
        """The spec with every default; nothing is stored."""
        return self._call("POST", "/jobs/validate", within_s, json=spec)

    def submit(self, spec: Json, key: str, within_s: float) -> Json:
        """The job of the spec; with the same key (for a day) always the same one."""
        return self._call("POST", "/jobs", within_s, json=spec, headers={"Idempotency-Key": key})

    def labelled(self, label: str, within_s: float) -> Json | None:
        """The newest job with a label, ``key=value``."""
        found: list[Json] = self._call("GET", "/jobs", within_s, params={"label": label, "page_size": 1})["jobs"]
        return found[0] if found else None

    def job(self, job_id: str, within_s: float) -> Json:
        """One job."""
        return self._call("GET", f"/jobs/{job_id}", within_s)

    def command(self, job_id: str, verb: str, within_s: float) -> Json:
        """``cancel`` or ``retry``; repeated they change nothing. Raises ConflictError where it cannot be done."""
        return self._call("POST", f"/jobs/{job_id}/{verb}", within_s)

    def points(self, job_id: str, key: str, since_step: int, within_s: float) -> list[ReportedPoint]:
        """Values of a key from a step on, in order; JSON has no word for what is no number, which comes as null."""
        asked = {"keys": key, "since_step": since_step, "max_points": MAX_POINTS}
        answer = self._call("GET", f"/jobs/{job_id}/metrics", within_s, params=asked)
        values = {p["step"]: p["values"][key] for p in answer["points"] if key in p["values"]}
        return [ReportedPoint(step=s, value=math.nan if v is None else float(v)) for s, v in values.items()]

    def keys(self, job_id: str, within_s: float) -> list[str]:
        """Under which keys a job has reported anything."""
        answer = self._call("GET", f"/jobs/{job_id}/metrics", within_s, params={"max_points": 2})
        return sorted(answer["keys"])

    def checkpoint_steps(self, job_id: str, within_s: float) -> list[int]:
        """Steps of the checkpoints that a job has, oldest first."""
        answer = self._call("GET", f"/jobs/{job_id}/checkpoints", within_s)
        return [int(checkpoint["step"]) for checkpoint in answer["checkpoints"]]

    def why(self, job_id: str, within_s: float) -> str:
        """Why a job waits or failed, in words."""
        told = self._call("GET", f"/jobs/{job_id}/explain", within_s)
        return ". ".join(str(part).rstrip(".") for part in (told["summary"], *told["details"], told["remedy"]) if part)

    def _call(self, method: str, path: str, within_s: float, **request: Any) -> Json:
        deadline_s, pause_s = self._clock() + within_s, PAUSE_S
        timeout = httpx2.Timeout(min(READ_S, within_s), connect=min(CONNECT_S, within_s))
        while True:
            try:
                answer = self._http.request(method, path, timeout=timeout, **request)
            except httpx2.TransportError as error:
                why = str(error) or type(error).__name__
            else:
                if answer.status_code not in _PASSING_STATUS:
                    return self._answered(answer)
                why = f"status {answer.status_code}"
            if self._clock() + pause_s > deadline_s:
                raise ServiceAwayError(
                    f"no answer from {self._address.url} for {within_s:.0f} s ({why}); start the service with "
                    "`concertina serve`, or give its address as `url` or CONCERTINA_URL"
                )
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _answered(self, answer: httpx2.Response) -> Json:
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ServiceError(
                f"{self._address.url} answers with status {answer.status_code} and no JSON: {answer.text[:200]!r}; "
                "give the address of a Concertina service"
            )
        if answer.status_code < 400:
            return document
        raise _ERRORS.get(answer.status_code, ServiceError)(_in_words(document, answer.status_code))


def _in_words(problem: Json, status: int) -> str:
    """A problem document (RFC 9457) as a text: a line for each fault."""
    told = str(problem.get("detail") or problem.get("title") or f"status {status}")
    faults = [f"{e.get('pointer') or '/'}: {e.get('detail')}" for e in problem.get("errors") or ()]
    hidden = [f"and {len(faults) - MAX_TOLD_PROBLEMS} more"] if len(faults) > MAX_TOLD_PROBLEMS else []
    return "\n".join([f"the service refuses ({status}): {told}", *faults[:MAX_TOLD_PROBLEMS], *hidden])

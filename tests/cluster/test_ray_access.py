"""The service's own Ray from outside: who has no token is turned away, and only what must listen does, on loopback."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from service.supervise.processes import belonging_to
from tests.cluster.gated import Gated
from tests.cluster.serving import Serving
from tests.cluster.stranger import asked

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

REFUSED = "AuthenticationError"
LISTENERS = (
    *("gcs_server", "raylet", "ray::RuntimeEnvAgent", "ray::JobController", "ray::TrainWorker"),
    *("ray::spare/", "ray::IDLE"),  # processes that wait: for a job, for an actor
)
OPEN = (psutil.CONN_LISTEN, psutil.CONN_NONE)
"""TCP's and UDP's sockets that take what comes."""


@pytest.fixture
def job(served: Serving, tmp_path: Path) -> Iterator[Gated]:
    """Two workers that stand in the middle of their training."""
    made = Gated(served, tmp_path, config={"gates": [4]})
    try:
        made.wait_at(4, 2)
        yield made
    finally:
        made.end()


def title(process: psutil.Process) -> str:
    """What a process of Ray calls itself, else its program."""
    command = " ".join(process.cmdline()).strip()
    return command if command.startswith("ray::") else f"{process.name()} {command}"


def listeners(processes: list[psutil.Process]) -> Iterator[tuple[str, str, int]]:
    """Who listens where: title, address, port."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            who = title(process)
            yield from ((who, *c.laddr) for c in process.net_connections(kind="inet") if c.status in OPEN)


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def told_by_http(port: int) -> int | None:
    """The status that somebody without a token gets; None where no HTTP is spoken."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/").status_code
    except httpx2.TransportError:
        return None


def test_who_shows_no_token_or_a_wrong_one_is_turned_away(served: Serving) -> None:
    ray = served.ray()
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    assert asked(ray.address, {}) == REFUSED
    assert asked(ray.address, wrong) == REFUSED
    assert asked(ray.address, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": ray.token_path}) == "1"


def test_only_what_must_listen_does_on_loopback_and_answers_nobody_without_a_token(served: Serving, job: Gated) -> None:
    found = list(listeners(served.processes()))
    assert [each for each in found if not is_loopback(each[1])] == []
    record = served.ray()
    of_ray = list(listeners(belonging_to(Path(record.temp_dir), record.pid)))
    assert [each for each in of_ray if not each[0].startswith(LISTENERS)] == []
    # Not of workers: what comes to their sockets, they take for each other.
    answers = {(who, told_by_http(port)) for who, _, port in of_ray if not who.startswith("ray::TrainWorker")}
    assert {(who, status) for who, status in answers if status} == {("ray::RuntimeEnvAgent", 401)}

"""The service's link to Ray's head goes through a proxy that delays, resets, cuts and swallows; jobs do not notice.

Workers and controllers have links of their own: only the reconciler's is spoilt.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.supervise.ports import free_port
from tests.cluster.foreign_ray import LOOPBACK, Foreign, end_ray, start_head
from tests.cluster.gated import Gated
from tests.cluster.serving import Serving, whole_service
from tests.tcp_proxy import TcpProxy, proxied_in_thread, to_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

Submit = Callable[..., Gated]

DELAY_S = 0.2
AS_SET: dict[str, str] = {}
"""Patient for 15 s: a cut that is to be short takes seconds on a busy machine."""
ATTENTIVE = {"CONCERTINA_LIVENESS_S": "6"}
"""For where the link stays away, so that this is found soon."""
PATIENT = {"CONCERTINA_LIVENESS_S": "10", "RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
"""Ray ends a driver whose head is away for so long, by default a minute; the service is not so patient then."""


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between the reconciler and Ray's head, whose files are in ``folder``."""

    proxy: TcpProxy
    loop: asyncio.AbstractEventLoop
    folder: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"

    def reset(self) -> None:
        self.loop.call_soon_threadsafe(self.proxy.reset)

    def cut(self) -> None:
        """Nothing gets through, and whoever tries is refused."""
        self.proxy.is_refusing = True
        self.reset()

    def swallow(self) -> None:
        """What is said is heard, what is answered is not."""
        self.proxy.is_deaf = True

    def mend(self) -> None:
        self.proxy.is_refusing = self.proxy.is_deaf = False
        self.reset()


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    folder = Path(tempfile.mkdtemp(prefix="ct-link-"))
    port = free_port()
    flags = ("--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=3")
    try:
        start_head(folder, *flags, variables=LOOPBACK)
        with proxied_in_thread(to_port(port)) as (proxy, loop):
            yield Link(proxy, loop, folder)
    finally:
        end_ray(folder)


@pytest.fixture
def attached(link: Link, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Serving]:
    variables = {**LOOPBACK, **getattr(request, "param", ATTENTIVE)}
    flags, foreign = ("--ray-address", link.address), Foreign(folder=link.folder)
    with whole_service(tmp_path / "home", *flags, variables=variables, foreign=foreign) as started:
        yield started


@pytest.fixture
def submit(link: Link, attached: Serving, tmp_path: Path) -> Iterator[Submit]:
    made: list[Gated] = []

    def make(name: str, *gates: int, **changes: Any) -> Gated:
        folder = tmp_path / name
        folder.mkdir()
        made.append(Gated(attached, folder, config={"gates": list(gates)}, **changes))
        return made[-1]

    yield make
    link.mend()
    for job in made:
        job.end()


@pytest.mark.parametrize("attached", [AS_SET], indirect=True)
def test_delays_resets_and_a_short_cut_of_the_link_to_ray_are_borne(
    link: Link, attached: Serving, submit: Submit
) -> None:
    link.proxy.delay_s = DELAY_S
    first = submit("first", 6, 12, 18)
    pids = first.wait_at(6, 2)
    reconciler = attached.pid_of("reconciler")
    second = submit("second", 6, workers=1)
    link.reset()
    second.wait_at(6, 1)
    assert attached.cluster()["is_up"]
    link.reset()
    first.open(6)
    assert sorted(first.wait_at(12, 2)) == sorted(pids)
    link.proxy.delay_s = 0.0
    link.cut()
    num_tried = link.proxy.num_accepted
    second.open(6)
    first.open(12)
    third = submit("third", workers=1)
    assert sorted(first.wait_at(18, 2)) == sorted(pids)
    wait_for("a try that is refused", lambda: link.proxy.num_accepted > num_tried + 2)
    link.mend()
    first.open(18)
    for job in (first, second, third):
        assert job.wait_done()["attempt"] == 1
        assert [to for to, _ in job.events()] == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
        assert "controller_lost" not in job.kinds()
        job.assert_nothing_broken()
    assert attached.pid_of("reconciler") == reconciler, attached.told + attached.last_logs()


def test_a_link_that_falls_silent_is_told_and_the_jobs_are_found_as_they_are_when_it_is_back(
    link: Link, attached: Serving, submit: Submit
) -> None:
    assert_outlives(link, attached, submit, link.swallow)


@pytest.mark.parametrize("attached", [PATIENT], indirect=True)
def test_a_driver_that_ray_ends_for_want_of_its_head_is_started_again_and_the_jobs_are_found_as_they_are(
    link: Link, attached: Serving, submit: Submit
) -> None:
    assert_outlives(link, attached, submit, link.cut)
    assert attached.told.count("ended with exit code 1;") == 1


def assert_outlives(link: Link, attached: Serving, submit: Submit, spoil: Callable[[], None]) -> None:
    """A job trains on while the link is away, another that is submitted then waits; both are done in the end."""
    first = submit("first", 6, 12, 18)
    pids = first.wait_at(6, 2)
    wait_for("the job's start", lambda: first.job()["state"] == "RUNNING")
    spoil()
    first.open(6)
    second = submit("second", 6, workers=1)
    assert sorted(first.wait_at(12, 2)) == sorted(pids)
    wait_for("word on the page", lambda: link.address in (attached.cluster()["error"] or ""), 60)
    wait_for("word of the job", lambda: ("RECOVERING", "CLUSTER_LOST") in first.events())
    assert not attached.cluster()["is_up"]
    assert not list(second.folder.glob("at-*"))
    link.mend()
    first.open(12)
    wait_for("the cluster's return", lambda: attached.cluster()["is_up"], 60)
    assert sorted(first.wait_at(18, 2)) == sorted(pids)
    wait_for("the job's return", lambda: first.job()["state"] == "RUNNING")
    first.open(18)
    second.open(6)
    for job in (first, second):
        assert job.wait_done()["attempt"] == 1
        assert "controller_lost" not in job.kinds()
        job.assert_nothing_broken()

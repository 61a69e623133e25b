"""A Ray head that an earlier `serve` left behind, stood in for by two processes that speak as its own do."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.supervise import ray_head
from service.supervise.home import Home
from service.supervise.ports import LOOPBACK, free_port, speaks
from service.supervise.processes import identity_of
from service.supervise.ray_head import PROBE_EVERY_S, PROBES_BEFORE_LOST, HeadEvent, RayHead
from service.supervise.ray_record import RayRecord, write_ray_record
from tests.waiting import LIMIT_S, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    made.prepare()
    yield made
    made.temp_dir().rmdir()


@dataclass(frozen=True, slots=True)
class Left:
    """``leader`` is the process that the record in the home names."""

    leader: subprocess.Popen[bytes]
    raylet: subprocess.Popen[bytes]


def speaking(port: int, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.service.stand_ins.head", str(port), f"--temp-dir={folder}"]
    return subprocess.Popen(command, cwd=ROOT)


@pytest.fixture
def left(home: Home) -> Iterator[Left]:
    """The stand-ins at work, and their record in the home."""
    ports, folder = (free_port(), free_port()), home.temp_dir()
    started = Left(*(speaking(port, folder) for port in ports))
    try:
        for port in ports:
            wait_for("a stand-in", lambda port=port: speaks(port, 1.0))
        identity = identity_of(started.leader.pid)
        record = RayRecord(
            address=f"{LOOPBACK}:{ports[0]}",
            is_own=True,
            pid=identity.pid,
            started_at=identity.started_at,
            temp_dir=str(folder),
            num_cpus=2,
            raylet_port=ports[1],
        )
        write_ray_record(home.ray_file, record)
        yield started
    finally:
        for process in (started.leader, started.raylet):
            process.kill()
            process.wait(timeout=LIMIT_S)


@pytest.mark.parametrize(("part", "told"), [("leader", "its port"), ("raylet", "its raylet's port")])
def test_a_head_of_which_a_part_is_stopped_is_ended_as_one_that_died(
    part: str, told: str, home: Home, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_head, "PROBE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(ray_head, "CLEAN_UP_LIMIT_S", 0.1)
    head = RayHead(home, 2, {})
    found = head.tick(0.0)
    assert found is not None
    assert found.event is HeadEvent.FOUND
    getattr(left, part).send_signal(signal.SIGSTOP)
    looks = [head.tick(PROBE_EVERY_S * n) for n in range(1, PROBES_BEFORE_LOST)]
    assert looks == [None] * (PROBES_BEFORE_LOST - 1)
    monkeypatch.setattr(ray_head, "PROBE_TIMEOUT_S", 2.0)  # the last look says who is silent: the other has to answer
    lost = head.tick(PROBE_EVERY_S * PROBES_BEFORE_LOST)
    assert lost is not None
    assert lost.event is HeadEvent.LOST
    assert re.match(rf"{told} \d+ said nothing {PROBES_BEFORE_LOST} times", lost.detail)
    assert getattr(left, part).wait(timeout=LIMIT_S) == -signal.SIGKILL
    assert not home.ray_file.exists()


def test_a_head_that_goes_on_in_time_is_kept(home: Home, left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    head = RayHead(home, 2, {})
    head.tick(0.0)
    left.raylet.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(ray_head, "PROBE_TIMEOUT_S", 0.05)
    num_before = PROBES_BEFORE_LOST - 1
    assert not any(head.tick(PROBE_EVERY_S * n) for n in range(1, num_before + 1))
    left.raylet.send_signal(signal.SIGCONT)
    monkeypatch.setattr(ray_head, "PROBE_TIMEOUT_S", LIMIT_S)
    assert not any(head.tick(PROBE_EVERY_S * n) for n in range(num_before + 1, 3 * num_before))
    assert head.is_up

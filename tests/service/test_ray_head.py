"""A Ray head that an earlier `serve` left behind, stood in for by a process that speaks as it does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def process(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """The stand-in at work, and its record in the home."""
    port, folder = free_port(), home.temp_dir()
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.service.stand_ins.head", str(port), f"--temp-dir={folder}"], cwd=ROOT
    )
    try:
        wait_for("the stand-in", lambda: speaks(port, 1.0))
        identity = identity_of(started.pid)
        record = RayRecord(
            address=f"{LOOPBACK}:{port}",
            is_own=True,
            pid=identity.pid,
            started_at=identity.started_at,
            temp_dir=str(folder),
            num_cpus=2,
        )
        write_ray_record(home.ray_file, record)
        yield started
    finally:
        started.kill()
        started.wait(timeout=LIMIT_S)


def test_a_head_that_is_stopped_is_ended_as_one_that_died(
    home: Home, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_head, "PROBE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(ray_head, "CLEAN_UP_LIMIT_S", 0.1)
    head = RayHead(home, 2, {})
    found = head.tick(0.0)
    assert found is not None
    assert found.event is HeadEvent.FOUND
    process.send_signal(signal.SIGSTOP)
    looks = [head.tick(PROBE_EVERY_S * n) for n in range(1, PROBES_BEFORE_LOST)]
    assert looks == [None] * (PROBES_BEFORE_LOST - 1)
    lost = head.tick(PROBE_EVERY_S * PROBES_BEFORE_LOST)
    assert lost is not None
    assert lost.event is HeadEvent.LOST
    assert f"said nothing {PROBES_BEFORE_LOST} times" in lost.detail
    assert process.wait(timeout=LIMIT_S) == -signal.SIGKILL
    assert not home.ray_file.exists()


def test_a_head_that_goes_on_in_time_is_kept(
    home: Home, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = RayHead(home, 2, {})
    head.tick(0.0)
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(ray_head, "PROBE_TIMEOUT_S", 0.05)
    num_before = PROBES_BEFORE_LOST - 1
    assert not any(head.tick(PROBE_EVERY_S * n) for n in range(1, num_before + 1))
    process.send_signal(signal.SIGCONT)
    monkeypatch.setattr(ray_head, "PROBE_TIMEOUT_S", LIMIT_S)
    assert not any(head.tick(PROBE_EVERY_S * n) for n in range(num_before + 1, 3 * num_before))
    assert head.is_up

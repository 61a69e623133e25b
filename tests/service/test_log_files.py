"""Logs of children stay within their bound, also while somebody writes to them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from service.settings import environment
from service.supervise.child import Child, Program
from service.supervise.log_files import bound_log, last_lines, open_log
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.supervise.log_files.MAX_LOG_BYTES", 20)


def test_whoever_holds_a_log_open_writes_on_at_its_new_beginning(tmp_path: Path) -> None:
    file = tmp_path / "api.log"
    descriptor = open_log(file)
    os.write(descriptor, b"an old line\nnewer than that\n")
    bound_log(file)
    os.write(descriptor, b"new\n")
    os.close(descriptor)
    assert file.read_bytes() == b"new\n"
    assert last_lines(tmp_path / "api.log.1", 5) == ["ine", "newer than that"]
    assert all(each.stat().st_mode & 0o077 == 0 for each in tmp_path.iterdir())
    bound_log(file)
    assert file.read_bytes() == b"new\n"


def test_lines_from_before_a_place_are_left_out_unless_the_log_was_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "api.log"
    file.write_bytes(b"old\nnew\n")
    assert last_lines(file, 5, begin=4) == ["new"]
    assert last_lines(file, 5, begin=8) == []
    assert last_lines(file, 5, begin=9) == ["old", "new"]


def test_on_a_full_disk_the_bound_holds_and_the_older_part_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "api.log"
    file.write_bytes(b"a line\n" * 100)
    (tmp_path / "api.log.1").symlink_to("/dev/full")
    bound_log(file)
    assert file.read_bytes() == b""
    assert not (tmp_path / "api.log.1").is_symlink()


def test_the_log_of_a_child_is_bounded_while_it_runs(tmp_path: Path) -> None:
    lifeline, writing = os.pipe()
    program = Program(
        name="chatty",
        module="tests.service.stand_ins.chatty",
        environment={**environment(), "PYTHONPATH": str(ROOT)},
        log_file=tmp_path / "chatty.log",
        cwd=tmp_path,
        patience_s=60.0,
    )
    child = Child(program, lifeline)
    child.start(time.monotonic())
    pid = child.pid

    def is_bounded() -> bool:
        assert child.tick(time.monotonic()) is None
        return program.log_file.stat().st_size <= 20 and (tmp_path / "chatty.log.1").exists()

    try:
        wait_for("a bounded log", is_bounded)
        assert child.pid == pid
        assert last_lines(tmp_path / "chatty.log.1", 1) == ["one of many lines"]
    finally:
        child.kill()
        os.close(writing)
        os.close(lifeline)

"""What a node keeps between workers: never taken from under one, and gone when nobody has used it for long."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from workers.node_lock import node_lock, try_lock
from workers.scratch import LOCK, PART, Bounds, keep_in_use, sweep

HOUR_S = 3600.0
DAY = Bounds(keep_s=24 * HOUR_S, max_bytes=10**9)


def quiet(_: str) -> None:
    return


def kept(folder: Path, size_bytes: int = 10) -> Path:
    """A folder as a worker that has ended leaves it."""

    def make(_: int) -> None:
        folder.mkdir(parents=True)
        (folder / "code.py").write_bytes(b"x" * size_bytes)

    os.close(keep_in_use(folder, make, "making", 10, quiet))
    return folder


def aged(folder: Path, age_s: float) -> None:
    then_s = time.time() - age_s
    os.utime(folder.with_suffix(LOCK), (then_s, then_s))


def swept(scratch: Path, bounds: Bounds = DAY) -> list[str]:
    return [Path(place).name for place in sweep(scratch, bounds, time.time(), every_s=0.0)]


USER = """
import sys
from pathlib import Path
from workers.scratch import keep_in_use, occupy
keep_in_use(Path(sys.argv[1]) / "bundles" / "a", lambda _: sys.exit("it was there"), "making", 10, print)
occupy(Path(sys.argv[1]), "job_a")
print("in use", flush=True)
sys.stdin.read()
"""


@contextmanager
def user_of_everything(scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """Another worker's process, that uses the bundle ``a`` and what is of the job ``job_a``."""
    command = [sys.executable, "-c", USER, str(scratch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in use\n"
        yield process
        process.kill()


def test_what_a_living_process_uses_stays_and_goes_by_age_once_that_was_killed(tmp_path: Path) -> None:
    folders = [kept(tmp_path / "bundles" / "a"), tmp_path / "logs" / "job_a", tmp_path / "output" / "job_a"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    none_fits = Bounds(keep_s=24 * HOUR_S, max_bytes=0)
    with user_of_everything(tmp_path) as process:
        for folder in folders:
            aged(folder, 48 * HOUR_S)
        assert swept(tmp_path, none_fits) == []
        process.kill()
        process.wait(30)
        assert swept(tmp_path) == [], "their age counts from when they were seen in use"
        for folder in folders:
            assert folder.is_dir()
            aged(folder, 25 * HOUR_S)
        assert sorted(swept(tmp_path)) == ["a", "job_a", "job_a"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / f"sweep{LOCK}"]


def test_above_the_size_the_longest_unused_goes_first(tmp_path: Path) -> None:
    for age, (kind, name) in enumerate((("bundles", "new"), ("deps", "middle"), ("bundles", "old"))):
        aged(kept(tmp_path / kind / name, size_bytes=1000), age * HOUR_S)
    (tmp_path / "logs" / "job_a").mkdir(parents=True)
    assert swept(tmp_path, Bounds(keep_s=24 * HOUR_S, max_bytes=3000)) == []
    assert swept(tmp_path, Bounds(keep_s=24 * HOUR_S, max_bytes=2000)) == ["old"]
    assert swept(tmp_path, Bounds(keep_s=24 * HOUR_S, max_bytes=500)) == ["middle", "new"]
    assert (tmp_path / "logs" / "job_a").is_dir(), "logs cannot be made anew"


def test_what_was_removed_is_made_again_and_counted_anew(tmp_path: Path) -> None:
    folder = kept(tmp_path / "bundles" / "a", size_bytes=1000)
    assert swept(tmp_path, Bounds(max_bytes=999)) == ["a"]
    kept(folder, size_bytes=10)
    assert swept(tmp_path, Bounds(max_bytes=999)) == []
    assert (folder / "code.py").stat().st_size == 10


def test_what_is_being_made_is_left_alone_and_what_a_killed_maker_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "deps" / "a"
    part = folder.with_suffix(PART)
    with node_lock(folder.with_suffix(LOCK), "installing", 10, quiet):
        part.mkdir(parents=True)
        aged(folder, 48 * HOUR_S)
        assert swept(tmp_path) == []
        assert part.is_dir()
    assert swept(tmp_path) == []
    assert not part.exists()


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_taken_for_held(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    first = try_lock(path)
    assert first is not None

    def remove(_: str) -> None:
        path.unlink()
        os.close(first)

    with node_lock(path, "a turn", 10, remove):
        assert try_lock(path) is None, "another process would hold the same one"


def test_nodes_are_swept_by_one_process_at_a_time_and_not_all_the_time(tmp_path: Path) -> None:
    aged(kept(tmp_path / "bundles" / "a"), 48 * HOUR_S)
    with node_lock(tmp_path / f"sweep{LOCK}", "sweeping", 10, quiet):
        assert swept(tmp_path) == []
    assert sweep(tmp_path, DAY, time.time(), every_s=HOUR_S) == []
    assert swept(tmp_path) == ["a"]


def test_a_node_without_anything_of_ours_is_given_nothing(tmp_path: Path) -> None:
    assert swept(tmp_path / "scratch") == []
    assert list(tmp_path.iterdir()) == []


LANE = """
import os, sys
from pathlib import Path
from workers.control import offspring
from workers.scratch import enter, occupy

def begin(job_id):
    occupy(Path(sys.argv[1]), job_id)
    offspring.guard()
    enter(Path(sys.argv[1]) / "bundles" / "a", lambda _: sys.exit("it was there"), "making", 10, print)
    return len(os.listdir("/proc/self/fd"))

print(begin("job_a"), *(begin(f"job_{number}") for number in range(20)), flush=True)
sys.stdin.read()
"""


def test_a_process_that_goes_from_job_to_job_holds_no_more_for_it_and_only_the_last_ones(tmp_path: Path) -> None:
    kept(tmp_path / "bundles" / "a")
    for name in ("job_a", "job_19"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    command = [sys.executable, "-c", LANE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        open_files = process.stdout.readline().split()
        assert len(open_files) == 21
        assert len(set(open_files)) == 1
        assert len(psutil.Process(process.pid).children()) == 1
        for name in ("job_a", "job_19"):
            aged(tmp_path / "logs" / name, 48 * HOUR_S)
        assert swept(tmp_path) == ["job_a"]
        process.kill()

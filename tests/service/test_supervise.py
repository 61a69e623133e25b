"""The supervisor over small real processes, the lock of a home, and its belongings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from service.migrations.upgrade import upgrade
from service.settings import load_settings
from service.supervise.child import FIRST_PAUSE_S, LONGEST_PAUSE_S, pause_before_start_s
from service.supervise.home import MAX_TEMP_CHARS, Home, HomeError
from service.supervise.inherited import inherited
from service.supervise.lock import AlreadyServedError, DatabaseServedError, ServeLock, current_holder, database_lock
from service.supervise.processes import (
    Identity,
    belonging_to,
    identity_of,
    kill_all_of,
    still_running,
    terminate_leader,
)
from service.supervise.ray_head import foreign_ray_environment, ray_environment
from service.supervise.ray_record import RayRecord, read_ray_record, write_ray_record
from service.supervise.serve import child_environment, serve
from tests.waiting import LIMIT_S, wait_for

ROOT = Path(__file__).resolve().parents[2]


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Serving:
    """A supervisor in a process of its own, over stand-ins."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.home, self.process, self._output = home, process, output

    @property
    def told(self) -> str:
        return self._output.read_text()

    def wait_told(self, text: str) -> None:
        wait_for(f"{text!r} in {self.told!r}", lambda: text in self.told)

    def api_pid(self) -> int:
        holder = current_holder(self.home / "run" / "serve.lock")
        assert holder is not None
        with urllib.request.urlopen(holder.url, timeout=LIMIT_S) as answer:
            return int(answer.read())

    def reconciler_pid(self) -> int:
        file = self.home / "reconciler.pid"
        wait_for("the reconciler", file.exists)
        return int(file.read_text())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=LIMIT_S)


@contextmanager
def serving(home: Path, api: str = "api", hangs: str = "") -> Iterator[Serving]:
    """``hangs`` names the program that the test lets hang, and that alone may be taken for hung."""
    words = [str(home), f"tests.service.stand_ins.{api}", hangs]
    output = home.with_suffix(".out")
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.stand_ins.serve", *words],
            cwd=ROOT,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Serving(home, process, output)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(timeout=LIMIT_S)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_killed_api_comes_back_alone_and_no_caller_is_turned_away(home: Path) -> None:
    with serving(home) as served:
        served.wait_told("ready")
        first, reconciler = served.api_pid(), served.reconciler_pid()
        os.kill(first, signal.SIGKILL)
        second = served.api_pid()  # asked while nobody may be there: the socket is the supervisor's
        assert second != first
        served.wait_told("SIGKILL; started again in 0.5 s")
        assert not is_gone(reconciler)
        assert served.stop() == 0


def test_a_killed_reconciler_comes_back_alone(home: Path) -> None:
    with serving(home) as served:
        served.wait_told("ready")
        api, first = served.api_pid(), served.reconciler_pid()
        os.kill(first, signal.SIGKILL)
        served.wait_told("ok reconciler started again")
        wait_for("another reconciler", lambda: served.reconciler_pid() != first)
        assert served.api_pid() == api
        assert served.stop() == 0


def test_an_api_that_is_stopped_is_replaced_alone(home: Path) -> None:
    with serving(home, hangs="api") as served:
        served.wait_told("ready")
        first, reconciler = served.api_pid(), served.reconciler_pid()
        os.kill(first, signal.SIGSTOP)
        served.wait_told(f"warn api process {first} gave no sign of life for")
        assert served.api_pid() != first
        assert not is_gone(reconciler)
        assert served.stop() == 0


def test_a_supervisor_that_was_stopped_looks_after_its_processes_again(home: Path) -> None:
    with serving(home) as served:
        served.wait_told("ready")
        first, reconciler = served.api_pid(), served.reconciler_pid()
        served.process.send_signal(signal.SIGSTOP)
        stopped = psutil.Process(served.process.pid)
        wait_for("the stop", lambda: stopped.status() == psutil.STATUS_STOPPED)
        os.kill(first, signal.SIGKILL)
        wait_for("the API's end", lambda: is_gone(first))
        assert "started again" not in served.told
        served.process.send_signal(signal.SIGCONT)
        assert served.api_pid() != first
        assert served.reconciler_pid() == reconciler
        assert "no sign of life" not in served.told
        assert served.stop() == 0


@pytest.mark.parametrize("hangs_by", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "stuck"])
def test_a_reconciler_that_hangs_is_replaced_alone(home: Path, hangs_by: signal.Signals) -> None:
    with serving(home, hangs="reconciler") as served:
        served.wait_told("ready")
        api, first = served.api_pid(), served.reconciler_pid()
        os.kill(first, hangs_by)
        served.wait_told(f"warn reconciler process {first} gave no sign of life for")
        wait_for("another reconciler", lambda: served.reconciler_pid() != first)
        assert served.api_pid() == api
        assert served.stop() == 0


def test_stopping_lets_the_reconciler_save_and_ends_everything(home: Path) -> None:
    with serving(home) as served:
        served.wait_told("ready")
        pids = served.api_pid(), served.reconciler_pid()
        assert served.stop() == 0
        assert (home / "saved").exists()
        assert all(is_gone(pid) for pid in pids)
        assert current_holder(home / "run" / "serve.lock") is None


def test_children_end_with_a_supervisor_that_is_killed(home: Path) -> None:
    with serving(home) as served:
        served.wait_told("ready")
        pids = served.api_pid(), served.reconciler_pid()
        served.process.kill()
        served.process.wait(timeout=LIMIT_S)
        for pid in pids:
            wait_for(f"the end of {pid}", lambda pid=pid: is_gone(pid))
        assert not (home / "saved").exists()  # jobs go on: nobody was told to save


def test_an_api_that_cannot_start_ends_the_supervisor_with_its_last_words(home: Path) -> None:
    leave_log(home)
    with serving(home, api="broken") as served:
        assert served.process.wait(timeout=LIMIT_S) == 5
        assert "broken on purpose" in served.told
        assert "a run before" not in served.told


def leave_log(home: Path) -> None:
    """A log of the API from an earlier run."""
    made = Home(home)
    made.prepare()
    (made.logs / "api.log").write_text("of a run before this one\n")


def test_an_api_that_is_long_in_coming_up_tells_what_it_waits_for(home: Path) -> None:
    leave_log(home)
    with serving(home, api="waiting") as served:
        served.wait_told("not up yet; its log: empty")
        (home / "go").touch()
        served.wait_told("not up yet; its log: the database is away: on purpose")
        assert served.told.count("not up yet") == 2
        assert served.stop() == 0


def test_a_home_is_served_once(home: Path) -> None:
    with serving(home) as served:
        served.wait_told("ready")
        with pytest.raises(AlreadyServedError, match=rf"process {served.process.pid}, at http.*concertina stop"):
            ServeLock(home / "run" / "serve.lock").__enter__()
        holder = current_holder(home / "run" / "serve.lock")
        assert holder is not None
        assert holder.pid == served.process.pid


def test_one_service_uses_a_database_file_whatever_its_home(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "a.db"
    settings = load_settings({"home": tmp_path / "home", "port": 0, "database": f"sqlite:///{file}"}, {})
    with database_lock(file):
        upgrade(settings.database_url)  # SQLite itself is not locked out
        with pytest.raises(DatabaseServedError, match=r"a\.db is served .* PostgreSQL"):
            serve(settings, {}, lambda *_: None, lambda _: None)
    with database_lock(file):
        pass


def test_a_lock_left_by_a_dead_process_holds_nobody(tmp_path: Path) -> None:
    file = tmp_path / "run" / "serve.lock"
    file.parent.mkdir()
    file.write_text('{"pid": 1, "url": "http://127.0.0.1:8420"}')
    assert current_holder(file) is None
    with ServeLock(file) as lock:
        lock.announce("http://127.0.0.1:1")
    assert file.read_text() == ""


def test_pauses_grow_to_a_bound() -> None:
    pauses = [pause_before_start_s(n) for n in range(40)]
    assert pauses[:4] == [0.0, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_home_is_private_and_its_temporary_folder_short_and_remembered(home: Path) -> None:
    place = Home(home)
    place.prepare()
    temp_dir = place.temp_dir()
    try:
        assert all(f.stat().st_mode & 0o077 == 0 for f in (home, place.run, place.logs, temp_dir))
        assert len(str(temp_dir)) <= MAX_TEMP_CHARS
        assert Home(home).temp_dir() == temp_dir
        temp_dir.chmod(0o777)
        other = place.temp_dir()
        assert other != temp_dir
        other.rmdir()
    finally:
        temp_dir.rmdir()


def test_a_temporary_folder_that_cannot_be_remembered_is_not_left_behind(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.supervise.home._short_temp_root", lambda: str(tmp_path))
    with pytest.raises(OSError, match="No such file"):
        Home(home).temp_dir()
    assert not list(tmp_path.glob("ct-*"))


def test_a_folder_with_other_things_in_it_is_no_home(home: Path) -> None:
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(HomeError, match=r"thesis\.tex; give --home an empty"):
        Home(home).prepare()
    with pytest.raises(HomeError, match="does not bear Concertina's mark"):
        Home(home).remove()
    assert (home / "thesis.tex").exists()


def test_purging_takes_all_that_is_ours_and_nothing_else(home: Path, tmp_path: Path) -> None:
    place = Home(home)
    place.prepare()
    storage, database = tmp_path / "storage", tmp_path / "elsewhere.db"
    for name in ("jobs/job_1", "bundles", "mine"):
        (storage / name).mkdir(parents=True)
    for name in ("elsewhere.db", "elsewhere.db-wal", "elsewhere.txt"):
        (tmp_path / name).touch()
    place.remember_outside([home / "storage", storage, database])
    temp_dir = place.temp_dir()
    place.remove()
    assert not home.exists()
    assert not temp_dir.exists()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["elsewhere.txt", "mine", "storage"]


@pytest.mark.parametrize(
    "name", ["DATABASE_URL", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "CONCERTINA_PORT", "RAY_ADDRESS", "MY_DATA"]
)
def test_workers_inherit_what_is_known_to_be_harmless_and_what_the_settings_name(name: str) -> None:
    given = {"PATH": "/bin", "LC_ALL": "C", "https_proxy": "p", "PIP_INDEX_URL": "i", "NCCL_DEBUG": "INFO"}
    assert inherited({**given, name: "x"}) == given
    assert inherited({**given, name: "x"}, (name,)) == {**given, name: "x"}


def test_children_keep_few_heaps_unless_they_are_told_otherwise(home: Path) -> None:
    settings = load_settings({"home": home})
    assert child_environment(settings, {})["MALLOC_ARENA_MAX"] == "2"
    assert child_environment(settings, {"MALLOC_ARENA_MAX": "8"})["MALLOC_ARENA_MAX"] == "8"


def test_the_head_listens_on_loopback_and_asks_for_a_token(tmp_path: Path) -> None:
    made = ray_environment({}, tmp_path / "token")
    assert made["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert made["RAY_AUTH_MODE"] == "token"
    assert made["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")


def test_a_head_that_is_told_to_end_waits_for_no_actor(tmp_path: Path) -> None:
    """Ray's own default is half a minute, longer than the head is given before it is killed."""
    assert ray_environment({}, tmp_path / "token")["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"


def test_a_head_hears_soon_of_room_that_was_left(tmp_path: Path) -> None:
    """Ray's own default is a tenth of a second, and the next trial of a sweep waited for it."""
    assert ray_environment({}, tmp_path / "token")["RAY_raylet_report_resources_period_milliseconds"] == "20"


def test_a_driver_of_somebody_elses_ray_shows_a_token_where_there_is_one(tmp_path: Path) -> None:
    given = {"HOME": str(tmp_path)}
    assert foreign_ray_environment(given) == given
    assert foreign_ray_environment({**given, "RAY_AUTH_TOKEN": "t"})["RAY_AUTH_MODE"] == "token"
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t")
    assert foreign_ray_environment(given)["RAY_AUTH_MODE"] == "token"
    assert foreign_ray_environment({**given, "RAY_AUTH_MODE": "disabled"})["RAY_AUTH_MODE"] == "disabled"


def test_a_ray_record_is_read_as_written_and_a_broken_one_is_none(tmp_path: Path) -> None:
    file = tmp_path / "ray.json"
    record = RayRecord(address="127.0.0.1:6379", is_own=True, pid=7, started_at=1.5, temp_dir="/tmp/ct-x", num_cpus=2)
    write_ray_record(file, record)
    assert read_ray_record(file) == record
    assert file.stat().st_mode & 0o077 == 0
    for text in ("", "{}", "[1]", '{"address": 1, "is_own": true, "more": 2}'):
        file.write_text(text)
        assert read_ray_record(file) is None


WITH_A_CHILD = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0); input()"


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


def test_processes_are_known_by_their_folder_and_their_leader(tmp_path: Path) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", WITH_A_CHILD, f"--temp-dir={tmp_path}"], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        identity = identity_of(leader.pid)
        # Until it runs its own program the child has its parent's command line, and so the folder in it.
        wait_for("its child's program", lambda: [p.cmdline()[-1:] for p in children_of(leader.pid)] == [["input()"]])
        assert len(belonging_to(tmp_path, leader.pid)) == 2
        assert [p.pid for p in belonging_to(tmp_path)] == [leader.pid]
        assert belonging_to(tmp_path / "other") == []
        assert not Identity(leader.pid, identity.started_at - 100).is_alive()
        terminate_leader(identity, tmp_path, wait_s=0.1)
        leader.wait(timeout=LIMIT_S)
        assert belonging_to(tmp_path, leader.pid) == []
    finally:
        leader.kill()
        leader.wait(timeout=LIMIT_S)


def test_what_is_known_by_its_folder_alone_ends_with_its_offspring(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITH_A_CHILD, f"--temp-dir={tmp_path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as parent:
        wait_for("its child", lambda: children_of(parent.pid))
        [child] = children_of(parent.pid)
        assert kill_all_of(tmp_path)
        assert still_running([child], 0.0) == []
    assert not kill_all_of(tmp_path)

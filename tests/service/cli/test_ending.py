from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.ending import purge_home
from service.cli.failures import CommandError
from service.cli.options import Form
from service.settings import load_settings
from service.states import Move, Verb, command
from service.store.opening import open_store
from service.supervise.home import Home, write_private
from tests.object_store import ObjectStore
from tests.service.cli.calls import Run
from tests.service.given import spec
from workers.storage import MARK
from workers.storage_urls import open_storage


@pytest.fixture
def attached(tmp_path: Path, migrated_file: Path) -> tuple[Home, str]:
    """A home whose last `serve` used somebody else's Ray, and its database."""
    place = Home(tmp_path / "home")
    place.prepare()
    settings = load_settings({"home": place.path, "ray_address": "10.0.0.5:6379"}, {})
    write_private(place.settings_file, json.dumps(settings.as_environment()))
    shutil.copy(migrated_file, place.path / "concertina.db")
    return place, settings.database_url


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_purge_is_refused_while_jobs_may_run_on_somebody_elses_ray(
    attached: tuple[Home, str], *, is_cancelled: bool
) -> None:
    place, database_url = attached
    asyncio.run(submit(database_url, is_cancelled=is_cancelled))
    if is_cancelled:
        assert purge_home(place.path, is_sure=True, form=Form.TEXT) == 0
        assert not place.path.exists()
        return
    with pytest.raises(CommandError, match=r"1 job is not ended.*10\.0\.0\.5:6379.*concertina cancel"):
        purge_home(place.path, is_sure=True, form=Form.TEXT)
    assert place.path.exists()


async def submit(database_url: str, *, is_cancelled: bool) -> None:
    store = open_store(database_url)
    job = (await store.jobs.submit(spec())).job
    if is_cancelled:
        move = command(Verb.CANCEL, job.state, job.attempt)
        assert isinstance(move, Move)
        await store.jobs.command(job, move)
    await store.close()


def test_without_a_service_stop_and_purge_have_nothing_to_do(concertina: Run, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    assert "nothing runs" in concertina("stop", "--home", home).stdout
    assert "nothing of Concertina's" in concertina("purge", "--home", home, "--yes").stdout
    assert concertina("open", "--home", home).returncode == 5


def test_purge_asks_and_removes_only_a_home(concertina: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    place = Home(tmp_path / "home")
    place.prepare()
    asked = concertina("purge", "--home", str(place.path))
    assert (asked.returncode, "nothing was removed" in asked.stdout) == (130, True)
    assert place.path.exists()
    assert concertina("purge", "--home", str(place.path), "--yes").returncode == 0
    assert not place.path.exists()
    tmp_path.joinpath("thesis.tex").touch()
    refused = concertina("purge", "--home", str(tmp_path), "--yes")
    assert refused.returncode == 2
    assert tmp_path.joinpath("thesis.tex").exists()


def test_nobody_who_could_be_asked_means_that_nothing_is_removed(
    concertina: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    place = Home(tmp_path / "home")
    place.prepare()
    for arguments in ((), ("-o", "json")):
        asked = concertina("purge", "--home", str(place.path), *arguments)
        assert asked.returncode == 2
        assert "--yes" in asked.stderr
    assert place.path.exists()


def test_ends_and_removals_answer_programs_with_one_document(concertina: Run, tmp_path: Path) -> None:
    place = Home(tmp_path / "home")
    place.prepare()
    home = ("--home", str(place.path), "-o", "json")
    assert json.loads(concertina("stop", *home).stdout) == {"home": str(place.path), "pid": None, "stopped": False}
    listed = [str(path) for path in place.belongings()]
    done = concertina("purge", "--yes", *home)
    assert json.loads(done.stdout) == {"home": str(place.path), "removed": listed}
    assert "removed" in done.stderr
    assert json.loads(concertina("purge", "--yes", *home).stdout)["removed"] == []


@pytest.mark.parametrize("ending", [("stop",), ("purge", "--yes")])
def test_a_ray_that_is_recorded_nowhere_ends_too(concertina: Run, tmp_path: Path, ending: tuple[str, ...]) -> None:
    place = Home(tmp_path / "home")
    place.prepare()
    starting, of_a_job = (waiting(f"--temp-dir={place.temp_dir() / name}") for name in ("r", "scratch"))
    try:
        done = concertina(*ending, "--home", str(place.path))
        assert (done.returncode, "parts of one that is not up" in done.stdout) == (0, True)
        assert starting.poll() is not None
        assert of_a_job.poll() is None, "its Ray may be somebody else's"
    finally:
        for process in (starting, of_a_job):
            process.kill()
            process.wait()
        place.remove()


def waiting(argument: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "input()", argument]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def test_what_a_serve_left_that_never_made_its_tables_is_removed(attached: tuple[Home, str], concertina: Run) -> None:
    place, database_url = attached
    Path(database_url.removeprefix("sqlite:///")).write_bytes(b"")
    done = concertina("purge", "--home", str(place.path), "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert not place.path.exists()


def test_purge_takes_along_what_is_in_an_object_store_where_the_mark_says_that_it_is_ours(
    tmp_path: Path, migrated_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ObjectStore() as objects:
        url = objects.make_bucket() + "/team"
        place = Home(tmp_path / "home")

        def prepare() -> None:
            place.prepare()
            settings = load_settings({"home": place.path, "storage": url, "storage_options": objects.options}, {})
            write_private(place.settings_file, json.dumps(settings.as_environment()))
            shutil.copy(migrated_file, place.path / "concertina.db")

        storage = open_storage(url)
        for key in ("bundles/a.zip", "jobs/job_1/checkpoints/manifests/a.json", "thesis.tex"):
            storage.write(key, [b"x"])
        storage.write(MARK, [b"concertina-another"])
        prepare()
        assert purge_home(place.path, is_sure=True, form=Form.TEXT) == 0
        assert f"{url} stays as it is" in capsys.readouterr().out.replace("\n", " ")
        assert len(storage.keys()) == 4
        prepare()
        storage.write(MARK, [asyncio.run(installation_id(place)).encode()])
        assert purge_home(place.path, is_sure=True, form=Form.TEXT) == 0
        assert storage.keys() == ["thesis.tex"]
        assert not place.path.exists()


async def installation_id(place: Home) -> str:
    store = open_store(f"sqlite:///{place.path / 'concertina.db'}")
    try:
        return await store.leases.installation_id()
    finally:
        await store.close()


def test_purge_keeps_the_home_while_its_object_store_cannot_be_emptied(tmp_path: Path, migrated_file: Path) -> None:
    place = Home(tmp_path / "home")
    place.prepare()
    with ObjectStore() as objects:
        nobody = {"endpoint_url": "http://127.0.0.1:1", "config_kwargs": {"retries": {"max_attempts": 0}}}
        options = {**objects.options, **nobody}
        settings = load_settings({"home": place.path, "storage": "s3://gone/team", "storage_options": options}, {})
        write_private(place.settings_file, json.dumps(settings.as_environment()))
        shutil.copy(migrated_file, place.path / "concertina.db")
        with pytest.raises(CommandError, match=r"s3://gone/team cannot be read.*bring it back and purge again"):
            purge_home(place.path, is_sure=True, form=Form.TEXT)
    assert place.path.exists()

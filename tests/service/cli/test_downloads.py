"""What a job left is brought to where its user wants it: weights, files, a log that still grows, the page itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import safetensors.numpy

from service.cli.logs import Selection, print_logs
from service.cli.options import Form
from service.folders import checkpoints_place, output_place
from service.records import Transition
from service.states import JobState
from service.store.opening import Store
from service.supervise.home import Home
from service.supervise.lock import ServeLock
from tests.service.cli.calls import ROOT, Api, Run
from tests.service.cli.test_long_answers import written
from tests.service.given import checkpoint, leader, log, placed, snapshot
from tests.stored_checkpoint import store_checkpoint
from tests.waiting import LIMIT_S, wait_for
from workers.storage_urls import open_storage

WEIGHTS = {"w": b"weights", "b": os.urandom(70_000)}


@pytest.fixture
def trained(api: Api) -> str:
    """The id of a job with checkpoints of two steps, the one of step 10 being the newest, and two files."""
    storage_url = str(api.home / "storage")

    async def write(store: Store) -> str:
        job = await placed(store, fence := await leader(store))
        for step in (20, 10):
            store_checkpoint(open_storage(checkpoints_place(storage_url, job.id)), checkpoint(step), WEIGHTS)
        output = open_storage(output_place(storage_url, job.id))
        output.write("loss.csv", [b"1,2\n"])
        output.write("plots/a b.txt", [b"drawn"])
        await store.reconciler.register_checkpoints(job.id, [checkpoint(10), checkpoint(20)], fence)
        return job.id

    return written(api, write)


def test_the_weights_of_a_step_are_downloaded_with_what_the_code_wrote(call: Run, trained: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    done = call("download", trained, "--step", "10", "--files", "--output", str(folder), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["digits-10.safetensors", "loss.csv", "plots/a b.txt"]
    assert json.loads(done.stdout) == {"job": trained, "step": 10, "files": [str(folder / name) for name in names]}
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == sorted(names)
    loaded = safetensors.numpy.load_file(folder / names[0])
    assert {name: tensor.tobytes() for name, tensor in loaded.items()} == WEIGHTS
    assert (folder / "plots" / "a b.txt").read_bytes() == b"drawn"


def test_without_a_step_the_newest_weights_come_and_a_step_without_any_is_told(
    call: Run, trained: str, tmp_path: Path
) -> None:
    done = call("download", trained, "--output", str(tmp_path))
    assert (done.returncode, [file.name for file in tmp_path.iterdir()]) == (0, ["digits-20.safetensors"])
    assert "digits-20.safetensors" in done.stdout
    missing = call("download", trained, "--step", "15", "--output", str(tmp_path))
    assert missing.returncode == 4
    assert "no checkpoint of step 15; there are: " in missing.stderr


def test_a_folder_that_cannot_be_written_is_told_with_the_way_out(call: Run, trained: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "digits-20.safetensors").mkdir()
    for output, named in ((file, file), (file / "in", file / "in"), (tmp_path, tmp_path / "digits-20.safetensors")):
        done = call("download", trained, "--output", str(output))
        assert done.returncode == 2
        assert f"{named} cannot be written: " in done.stderr
        assert "; choose another by --output" in done.stderr


def test_a_file_that_fails_keeps_no_other_from_being_downloaded(call: Run, trained: str, tmp_path: Path) -> None:
    (tmp_path / "loss.csv").mkdir()
    done = call("download", trained, "--files", "--output", str(tmp_path), "-o", "json")
    assert done.returncode == 2
    assert "1 of 2 files were not downloaded:\n  'loss.csv': " in done.stderr
    written_files = [str(tmp_path / name) for name in ("digits-20.safetensors", "plots/a b.txt")]
    assert json.loads(done.stdout)["files"] == written_files
    assert (tmp_path / "plots" / "a b.txt").read_bytes() == b"drawn"


@pytest.mark.parametrize("form", ["text", "json"])
def test_standard_output_on_a_full_disk_is_told_in_a_line(api: Api, form: str) -> None:
    for variables in ({}, {"PYTHONUNBUFFERED": "1"}):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "service.cli.main", "jobs", "-o", form],
                cwd=ROOT,
                env=api.environment | variables,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        told = "error: standard output cannot be written: No space left on device; make room, or send it elsewhere\n"
        assert (done.returncode, done.stderr) == (2, told)


def test_a_log_is_followed_until_its_job_has_ended_with_its_last_line(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, rest = b"first\n", b"a line of the end\n" * 70_000

    async def begin(store: Store) -> str:
        job = await placed(store, fence := await leader(store), workers={"min": 1, "max": 1})
        await store.reconciler.fold(snapshot(job, logs=(log(first),), workers=()), fence)
        return job.id

    async def end(store: Store) -> str:
        job = await store.reconciler.job(job_id)
        assert job is not None
        fence = await leader(store)
        size = 100_000
        chunks = (log(rest[at : at + size], offset=len(first) + at) for at in range(0, len(rest), size))
        await store.reconciler.fold(snapshot(job, logs=tuple(chunks), workers=()), fence)
        await store.reconciler.transition(job, JobState.FAILED, Transition(), fence)
        return job_id

    def ending_when_asked(asked: str) -> Any:
        if waited:
            waited.clear()
            written(api, end)
        return state_of(asked)

    waited: list[float] = []
    job_id = written(api, begin)
    with api.client() as client:
        state_of = client.job
        monkeypatch.setattr(client, "job", ending_when_asked)
        followed = Selection(rank=None, tail=None, is_followed=True)
        print_logs(client, job_id, followed, Form.TEXT, waited.append)
    out, err = capsys.readouterr()
    assert out == (first + rest).decode()
    assert "digits has ended" in err


def test_open_shows_a_browser_a_link_that_logs_it_in_once(api: Api, tmp_path: Path) -> None:
    shown, browser = tmp_path / "shown", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shown}.draft && mv {shown}.draft {shown}\n')
    browser.chmod(0o755)
    with ServeLock(Home(api.home).lock_file) as lock:
        lock.announce(api.url)
        done = subprocess.run(
            [sys.executable, "-m", "service.cli.main", "open", "--home", str(api.home)],
            cwd=ROOT,
            env={**api.environment, "BROWSER": f"{browser} %s &"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    link = done.stdout.strip()
    wait_for("the browser", shown.exists)
    assert shown.read_text().strip() == link
    with httpx2.Client(follow_redirects=True) as first, httpx2.Client(follow_redirects=True) as second:
        assert "jobs" in first.get(link).text.lower()
        assert first.get(f"{api.url}/jobs").status_code == 200
        second.get(link)
        assert second.get(f"{api.url}/jobs").status_code == 401

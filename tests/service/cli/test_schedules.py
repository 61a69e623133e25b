"""``concertina schedule``, over a real API without a reconciler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cli.follow import JobView
from service.cli.options import Form
from service.cli.run_follow import follow_run
from service.client import Client
from service.store.opening import Store
from tests.service.cli.calls import SPEC, Api, Run, play
from tests.service.given import Clock, leader
from tests.service.scheduled import Firing
from tests.service.swept import sweep_document

JOB = {key: value for key, value in SPEC.items() if key != "name"}


def schedule_file(folder: Path, **changes: Any) -> str:
    file = folder / "schedule.yaml"
    document = {"name": "nightly", "cron": "30 2 * * *", "time_zone": "Europe/Berlin", "target": {"job": JOB}}
    file.write_text(json.dumps({**document, **changes}))
    return str(file)


def test_a_schedule_lives_from_its_file_to_its_deletion(call: Run, tmp_path: Path) -> None:
    made = call("schedule", "create", schedule_file(tmp_path), "--set", "overlap=allow")
    assert (made.returncode, made.stderr) == (0, "")
    assert "runs next at " in made.stdout
    assert "02:30 CE" in made.stdout
    assert "nightly  Active  30 2 * * *  Europe/Berlin" in " ".join(call("schedule", "list").stdout.split("\n"))
    upcoming = json.loads(call("schedule", "next", "nightly", "-n", "3", "-o", "json").stdout)
    assert len(upcoming["times"]) == 3
    assert "Europe/Berlin" in call("schedule", "next", "nightly").stdout
    assert "paused by hand" in call("schedule", "pause", "nightly", "-o", "json").stdout
    assert "allow" in call("schedule", "show", "nightly").stdout
    run = json.loads(call("schedule", "trigger", "nightly", "-o", "json").stdout)
    assert run["outcome"] == "STARTED"
    told = call("schedule", "runs", "nightly").stdout
    assert run["child_id"] in told
    assert "Queued" in told
    changed = call("schedule", "replace", "nightly", schedule_file(tmp_path, cron="0 4 * * *", name="early"))
    assert "early" in changed.stdout
    assert "04:00" in call("schedule", "resume", "early").stdout
    assert call("schedule", "delete", "early", "--yes").returncode == 0
    assert "no schedules" in call("schedule", "list").stdout
    assert call("schedule", "show", "early").returncode == 4
    assert call("show", run["child_id"]).returncode == 0


def test_a_schedule_is_judged_without_being_made(call: Run, tmp_path: Path) -> None:
    told = call("schedule", "validate", schedule_file(tmp_path), "--set", "jitter_s=5")
    assert (told.returncode, told.stderr) == (0, "")
    assert "nightly would be taken: it starts job nightly at 30 2 * * * in Europe/Berlin" in " ".join(
        told.stdout.split()
    )
    resolved = json.loads(call("schedule", "validate", schedule_file(tmp_path), "-o", "json").stdout)
    assert (resolved["overlap"], resolved["catchup_window_s"]) == ("skip", 3600)
    refused = call("schedule", "validate", schedule_file(tmp_path, cron="0 22-6 * * *"))
    assert refused.returncode == 2
    assert "22-6 runs backwards; write 22-23,0-6" in " ".join(refused.stderr.split())
    assert "no schedules" in call("schedule", "list").stdout


def end_job(api: Api, job_id: str, *, then_fire: bool = False) -> None:
    async def end(store: Store, clock: Clock) -> None:
        firing = Firing(store, clock, await leader(store))
        await firing.end(job_id)
        if then_fire:
            await firing.schedules.turn()

    play(api, end)


def triggered(client: Client, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    schedule = client.find_schedule(name)
    return schedule, client.command_schedule(schedule["id"], "trigger")


def test_what_a_trigger_starts_is_followed_until_it_ends(
    call: Run, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"job": {**JOB, "name": "hourly-job"}}
    call("schedule", "create", schedule_file(tmp_path, name="hourly", target=job))
    monkeypatch.setattr("service.cli.follow.ASK_EVERY_S", 0.0)
    monkeypatch.setattr("service.cli.follow.JobView.news", ending(api, JobView.news))
    done = call("schedule", "trigger", "hourly", "--follow")
    lines = done.stdout.splitlines()
    job_id = lines[0].split()[2].rstrip(":")
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == f"hourly started {job_id}: triggered by hand"
    assert lines[1] == f"page {api.url}/jobs/{job_id}"
    assert (lines[2], lines[-2], lines[-1][:11]) == ("Queued", "Succeeded", "hourly-job:")
    assert call("show", job_id, "--follow").stdout.splitlines()[-2:] == lines[-2:]


def ending(api: Api, news: Callable[[JobView], list[str]]) -> Callable[[JobView], list[str]]:
    """What is told of a job, after which that ends."""

    def told(view: JobView) -> list[str]:
        lines = news(view)
        if view.job["state"] == "QUEUED":
            end_job(api, view.job["id"])
        return lines

    return told


def test_a_run_that_waits_is_followed_once_it_starts(
    call: Run, api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("schedule", "create", schedule_file(tmp_path, name="patient"), "--set", "overlap=buffer_one")
    with api.client() as client:
        _, first = triggered(client, "patient")
        schedule, second = triggered(client, "patient")

        def end_what_lives(_: float) -> None:
            runs = list(client.schedule_runs(schedule["id"]))
            end_job(api, next(run["child_id"] for run in runs if run["child_state"] == "QUEUED"), then_fire=True)

        capsys.readouterr()
        assert (first["outcome"], second["outcome"]) == ("STARTED", "BUFFERED")
        assert follow_run(client, schedule, second, Form.TEXT, sleep=end_what_lives) == 0
        (run, *_) = client.schedule_runs(schedule["id"])
    told = capsys.readouterr().out
    assert f"page {api.url}/jobs/{run['child_id']}" in told
    assert run["child_id"] != first["child_id"]

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with api.client() as client:
        triggered(client, "patient")
        assert follow_run(client, *triggered(client, "patient"), Form.TEXT, sleep=interrupt) == 130
    assert "`concertina schedule runs patient` tells what it started" in capsys.readouterr().out


def test_the_sweep_that_a_trigger_starts_is_followed_and_left_running(
    call: Run, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = {key: value for key, value in sweep_document().items() if key != "name"}
    call("schedule", "create", schedule_file(tmp_path, name="searching", target={"sweep": sweep}))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.cli.sweep_follow._watch", interrupt)
    done = call("schedule", "trigger", "searching", "--follow")
    with api.client() as client:
        made = client.find_sweep("searching")
    assert (done.returncode, made["state"]) == (130, "RUNNING")
    assert f"`concertina sweep get {made['id']} --follow`" in done.stdout
    skipped = call("schedule", "trigger", "searching", "-f")
    assert skipped.returncode == 1
    assert "nothing to follow: the run before has not ended; overlap is skip" in skipped.stderr


def test_a_refused_schedule_tells_pointer_and_remedy(call: Run, tmp_path: Path) -> None:
    done = call("schedule", "create", schedule_file(tmp_path, cron="0 0 30 2 *", time_zone="Europe/Berlim"))
    assert done.returncode == 2
    assert "/cron: fits no date in any year" in done.stderr
    assert "/time_zone: is not the IANA name of a time zone; did you mean 'Europe/Berlin'?" in done.stderr


def test_the_code_of_a_scheduled_job_is_sent_along(call: Run, api: Api, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def build(config): ...\n")
    job = {"entrypoint": "train:build", "code": "./code", "steps": 5}
    made = call("schedule", "create", schedule_file(tmp_path, name="own", target={"job": job}), "-o", "json")
    assert made.returncode == 0, made.stderr
    spec = json.loads(made.stdout)["spec"]["target"]["job"]
    assert spec["bundle"].startswith("bundle_")
    assert spec["name"] == "own"
    swept = {"job": job, "space": {"optimizer.lr": {"choice": [0.1, 0.2]}}, "metric": "eval.accuracy"}
    made = call("schedule", "create", schedule_file(tmp_path, name="swept", target={"sweep": swept}), "-o", "json")
    assert json.loads(made.stdout)["spec"]["target"]["sweep"]["job"]["bundle"] == spec["bundle"], made.stderr

"""``concertina schedule``, over a real API without a reconciler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.service.cli.calls import SPEC, Api, Run

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

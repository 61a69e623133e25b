"""``concertina sweep``, over a real API without a reconciler."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from service.cli.options import Form
from service.cli.sweep_follow import follow_sweep
from service.store.opening import Store
from tests.service.cli.calls import Api, Run, play, terminal
from tests.service.given import Clock
from tests.service.swept import Swept, sweep_document


def sweep_file(folder: Path, **changes: Any) -> str:
    file = folder / "sweep.yaml"
    file.write_text(json.dumps(sweep_document(**changes)))
    return str(file)


def play_sweep(api: Api, sweep_id: str, part: Callable[[Swept], Awaitable[None]]) -> None:
    """Do what the reconciler would for a sweep."""

    async def run(store: Store, clock: Clock) -> None:
        await part(await Swept.of(store, clock, sweep_id))

    play(api, run)


def test_a_sweep_is_made_looked_at_and_steered(call: Run, api: Api, tmp_path: Path) -> None:
    file = sweep_file(tmp_path)
    assert "would be taken: 8 trials over optimizer.lr, batch.global_size" in call("sweep", "validate", file).stdout
    told = call("sweep", "estimate", file, "--set", "pruner=none").stdout
    assert "25.6k samples" in told
    assert "its speed is not known" in told
    made = call("sweep", "submit", file, "--set", "trials=6", "-o", "json")
    sweep = json.loads(made.stdout)
    assert (made.returncode, sweep["trials"]["total"]) == (0, 6)
    play_sweep(api, sweep["id"], lambda swept: swept.play())
    assert "digits-lr  Running  eval.accuracy  95 % (trial 1)" in " ".join(call("sweep", "list").stdout.split("\n"))
    one = call("sweep", "get", "digits-lr").stdout
    assert "4 of 6 trials, 1 failed" in one
    assert "optimizer.lr 0.01, batch.global_size 64" in one
    failed = call("sweep", "trials", "digits-lr", "--state", "FAILED").stdout
    assert "lr is too much" in failed
    report = call("sweep", "report", "digits-lr").stdout
    for text in ("luckiest of 3 trials", "95 %", "0.15", "of a worker", "reached"):
        assert text in report
    job = {"name": "digits", **sweep_document()["job"]}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    assert "the sweep names none" in call("sweep", "promote", "digits-lr").stderr
    assert call("configuration", "put", str(tmp_path / "job.yaml")).returncode == 0
    promoted = call("sweep", "promote", "digits-lr", "digits")
    assert "its winner is held against digits once the sweep has ended" in promoted.stdout
    assert "held against digits" in call("sweep", "report", "digits-lr").stdout
    for arguments, state in (
        (("pause",), "paused"),
        (("resume",), "running"),
        (("extend", "9"), "running"),
        (("retry-failed",), "running"),
        (("stop",), "stopped"),
    ):
        done = call("sweep", arguments[0], "digits-lr", *arguments[1:])
        assert (done.returncode, f": {state}, " in done.stdout) == (0, True), done
    assert call("sweep", "pause", "digits-lr").returncode == 2
    assert call("sweep", "get", "nothing").returncode == 4


async def end(swept: Swept) -> None:
    await swept.play()
    await swept.finish()


def test_following_tells_each_better_value_and_failure_until_the_end(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with api.client() as client:
        sweep_id = client.submit_sweep(sweep_document(name="followed"))["id"]
        assert follow_sweep(client, sweep_id, Form.TEXT, sleep=lambda _: play_sweep(api, sweep_id, end)) == 0
        told = capsys.readouterr().out
        assert told.startswith("Running\n")
        for text in ("trial 2 failed: lr is too much", "best so far: 95 % (trial 1), optimizer.lr 0.01", "Succeeded"):
            assert text in told
        stopped = client.submit_sweep(sweep_document(name="stopped"))["id"]
        client.command_sweep(stopped, "stop")
        assert follow_sweep(client, stopped, Form.JSON) == 1
        assert json.loads(capsys.readouterr().out)["state"] == "STOPPED"


def test_in_a_terminal_a_bar_counts_the_trials(api: Api) -> None:
    parts = iter((Swept.play, Swept.finish))
    with api.client() as client, terminal() as taking:
        sweep_id = client.submit_sweep(sweep_document(name="watched"))["id"]
        assert follow_sweep(client, sweep_id, Form.TEXT, sleep=lambda _: play_sweep(api, sweep_id, next(parts))) == 0
    assert "  0 %  0 of 8 trials  best –" in taking.shown
    assert " 50 %  4 of 8 trials, 1 failed  best 95 % (trial 1)" in taking.shown
    assert " 80 %  4 of 5 trials, 1 failed  best 95 % (trial 1)" in taking.shown


async def promote(swept: Swept) -> None:
    await end(swept)
    await swept.compare()


async def conclude(swept: Swept) -> None:
    await swept.conclude(lambda _: 0.9)


def put_configuration(call: Run, folder: Path, name: str) -> None:
    (folder / "job.yaml").write_text(json.dumps({"name": name, **sweep_document()["job"]}))
    assert call("configuration", "put", str(folder / "job.yaml")).returncode == 0


def test_a_promotion_is_followed_to_its_end(call: Run, api: Api, tmp_path: Path) -> None:
    put_configuration(call, tmp_path, "in-use")
    parts = iter((promote, conclude))
    with api.client() as client, terminal() as taking:
        sweep_id = client.submit_sweep(sweep_document(name="promoted", promote="in-use"))["id"]
        assert follow_sweep(client, sweep_id, Form.TEXT, sleep=lambda _: play_sweep(api, sweep_id, next(parts))) == 0
    for text in ("  its winner is held against version 1 of in-use", "compared 0/2", "in-use stays at version 1: not"):
        assert text in taking.shown


async def find_a_cheaper_one(swept: Swept) -> None:
    await end(swept)
    await swept.conclude(lambda _: 0.9, lasts_s=lambda contender: 10.0 if contender == 1 else 40.0)


def test_a_report_tells_who_was_compared_and_what_each_saves(call: Run, api: Api, tmp_path: Path) -> None:
    put_configuration(call, tmp_path, "saved")
    with api.client() as client:
        sweep_id = client.submit_sweep(sweep_document(name="cheaper", promote="saved"))["id"]
    play_sweep(api, sweep_id, find_a_cheaper_one)
    lines = [" ".join(line.split()) for line in call("sweep", "report", "cheaper").stdout.splitlines()]
    assert "trial 1 90 % 0 % (0 to 0 %) in 8 pairs of runs 1 75 % 0.00391 10 s" in lines
    assert "in use 90 % – – – – 40 s" in lines
    assert any("runs: " in line and line.endswith("of worker time, not in the cost of the trials") for line in lines)


def test_stopping_tells_of_the_comparison_that_it_ends(call: Run, api: Api, tmp_path: Path) -> None:
    put_configuration(call, tmp_path, "kept")
    parts = {
        "compared": (promote, "succeeded, 4 of 5 trials, 1 failed; its winner is held against kept no longer"),
        "ended": (end, "succeeded, 4 of 5 trials, 1 failed; its winner will not be held against kept"),
        "searched": (Swept.play, "stopped, 4 of 5 trials, 1 failed; its winner will not be held against kept"),
    }
    for name, (part, told) in parts.items():
        with api.client() as client:
            sweep_id = client.submit_sweep(sweep_document(name=name, promote="kept"))["id"]
        play_sweep(api, sweep_id, part)
        assert told in call("sweep", "stop", name).stdout
    assert "nothing was promoted to kept: stopped by hand" in call("sweep", "stop", "compared").stdout
    plain = call("sweep", "stop", "searched").stdout
    assert "promoted" not in plain
    assert "kept" not in plain


def test_one_that_runs_already_is_followed_by_whoever_asks(call: Run, api: Api, tmp_path: Path) -> None:
    call("sweep", "submit", sweep_file(tmp_path, name="later"))
    with api.client() as client:
        sweep_id = client.find_sweep("later")["id"]
    play_sweep(api, sweep_id, end)
    done = call("sweep", "get", "later", "--follow")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [
        "Succeeded: the trials are complete",
        "  trial 2 failed: lr is too much",
    ]
    assert json.loads(call("sweep", "get", "later", "-f", "-o", "json").stdout)["id"] == sweep_id


def test_ctrl_c_leaves_it_running_and_tells_how_to_follow_it_again(
    call: Run, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call("sweep", "submit", sweep_file(tmp_path, name="left"))
    monkeypatch.setattr("service.cli.sweep_follow._watch", interrupted)
    done = call("sweep", "get", "left", "--follow")
    assert done.returncode == 130
    with api.client() as client:
        sweep = client.find_sweep("left")
    assert f"the sweep goes on; follow it again with `concertina sweep get {sweep['id']} --follow`" in done.stdout
    assert sweep["state"] == "RUNNING"


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_refused_sweep_tells_pointer_and_remedy(call: Run, tmp_path: Path) -> None:
    done = call("sweep", "submit", sweep_file(tmp_path, metric="eval.loss", mode="max", sampler="grid"))
    assert done.returncode == 2
    assert "/space/optimizer.lr: a grid needs values that can be counted" in done.stderr


def test_the_code_of_its_job_is_sent_along(call: Run, api: Api, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def build(config): ...\n")
    # Alone the job would be refused: what is searched is missing in it.
    job = {"entrypoint": "train:build", "code": "./code"}
    space = {"epochs": {"choice": [1, 2]}}
    made = call("sweep", "submit", sweep_file(tmp_path, name="own", job=job, space=space), "-o", "json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["spec"]["job"]["bundle"].startswith("bundle_")
    refused = call("sweep", "submit", sweep_file(tmp_path, name="own", job=job, space={}))
    assert refused.returncode == 2
    assert "packed" not in refused.stderr

"""A real ``tune.Tuner`` whose trials are jobs of a real service, interrupted in the middle and restored."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.folders import token_file
from service.packing import pack
from service.settings import environment
from service.supervise.processes import belonging_to, kill_all
from tests.cluster.serving import ROOT, Serving
from tests.cluster.tuner import EPOCHS, EXPERIMENT, METRIC, NUM_TRAIN
from tests.waiting import wait_for
from tuning.trainable import EXPERIMENT_LABEL, TRIAL_LABEL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIMIT_S, END_S = 150.0, 60.0
TASK = Path(__file__).parent / "tuned_task"
ENDED = ("SUCCEEDED", "CANCELLED", "FAILED")


class Script:
    """The user's script, which may be run again and again."""

    def __init__(self, served: Serving, folder: Path, ray_folder: Path) -> None:
        self._served, self._folder, self._ray_folder = served, folder, ray_folder
        self._gate = folder / "go"
        with served.client() as client:
            bundle = client.upload(pack(TASK).data)["id"]
            token = token_file(served.home).read_text().strip()
        job = {"bundle": bundle, "config": {"gate": str(self._gate)}}
        given = {"folder": str(folder), "ray_folder": str(ray_folder), "url": served.url, "token": token, "job": job}
        self._given = json.dumps(given)
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: set[int] = set()

    def start(self) -> None:
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.tuner", self._given],
                cwd=ROOT,
                env={**environment(), "TUNE_GLOBAL_CHECKPOINT_S": "1", "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def interrupt(self) -> None:
        """As by Ctrl-C at a terminal, which the script takes for a reason to end in order."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(END_S)
        self.end()

    def wait_reports(self) -> None:
        """Wait until Tune has a report of each of three trials by a process of this run, and has noted the trials."""

        def is_told() -> bool:
            latest = self._latest()
            return len(latest) == 3 and self._pids.isdisjoint(report["pid"] for report in latest.values())

        wait_for("reports", is_told, LIMIT_S)
        self._pids |= {report["pid"] for report in self._latest().values()}
        wait_for("Tune's own notes", lambda: self._has_noted(list(self._latest())))

    def train_on(self) -> None:
        """Let the jobs go on past their first evaluation."""
        self._gate.touch()

    def results(self) -> list[dict[str, Any]]:
        """Of the script, once it has ended by itself, well."""
        assert self._process is not None
        assert self._process.wait(LIMIT_S) == 0, self._output()
        found: list[dict[str, Any]] = json.loads((self._folder / "results.json").read_text())
        return found

    def end(self) -> None:
        """All that it started is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        kill_all(belonging_to(self._ray_folder))

    def _has_noted(self, trial_ids: list[str]) -> bool:
        states = sorted((self._folder / EXPERIMENT).glob("experiment_state-*.json"))
        return bool(states) and all(trial_id in states[-1].read_text() for trial_id in trial_ids)

    def _latest(self) -> dict[str, dict[str, Any]]:
        """What Tune was told last, by trial."""
        assert self._process is not None
        assert self._process.poll() is None, self._output()
        files = (self._folder / EXPERIMENT).glob("*/result.json")
        # What follows the last line break is still being written.
        reports = [json.loads(lines[-1]) for file in files if (lines := file.read_text().split("\n")[:-1])]
        return {report["trial_id"]: report for report in reports}

    def states(self) -> list[str]:
        return [str(job["state"]) for job in self.jobs()]

    def _output(self) -> str:
        return (self._folder / "output").read_text()[-4000:]

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs of the experiment, all that there ever were."""
        with self._served.client() as client:
            return list(client.jobs(label=f"{EXPERIMENT_LABEL}={EXPERIMENT}"))


@pytest.fixture
def script(served: Serving, tmp_path: Path) -> Iterator[Script]:
    ray_folder = Path(tempfile.mkdtemp(prefix="ct-tune-"))  # a short path: Ray's sockets lie in it
    made = Script(served, tmp_path, ray_folder)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(ray_folder, ignore_errors=True)
        for job in made.jobs():
            if job["state"] not in ENDED:
                with served.client() as client:
                    client.command(job["id"], "cancel")


def test_a_tuner_that_is_killed_then_interrupted_and_each_time_restored_submits_no_job_twice(script: Script) -> None:
    script.start()
    script.wait_reports()
    script.end()  # at once, as when its machine loses power: nobody cancels its jobs
    script.start()
    script.wait_reports()
    assert [(job["state"], job["attempt"]) for job in script.jobs()] == [("RUNNING", 1)] * 3
    script.interrupt()  # while all trials wait for the next report
    wait_for("their jobs to be cancelled", lambda: script.states() == ["CANCELLED"] * 3)
    script.start()
    script.wait_reports()  # each trial has found its job, which tells its first report anew
    # A bad one that were far ahead of the good one would pass the rungs at which it is to be judged.
    wait_for("their jobs to train again", lambda: script.states() == ["RUNNING"] * 3, LIMIT_S)
    script.train_on()
    results = script.results()

    jobs = {job["spec"]["labels"][TRIAL_LABEL]: job for job in script.jobs()}
    assert (len(script.jobs()), len(jobs), len(results)) == (3, 3, 3)
    assert [result["error"] for result in results] == [None] * 3
    best = max(results, key=lambda result: result["metrics"][METRIC])
    assert best["metrics"][METRIC] > 0.9
    assert best["metrics"]["samples"] == EPOCHS * NUM_TRAIN
    assert jobs[best["metrics"]["trial_id"]]["state"] == "SUCCEEDED"
    # What Tune pruned was cancelled, and nothing trains on.
    wait_for("the end of the pruned", lambda: set(script.states()) <= set(ENDED))
    assert sorted(script.states()) == ["CANCELLED", "CANCELLED", "SUCCEEDED"]
    assert [job["attempt"] for job in script.jobs()] == [2, 2, 2]

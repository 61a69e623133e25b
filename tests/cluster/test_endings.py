"""How jobs end on a real Ray, and what their owners are told of it: one batch of small jobs, judged one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from service.client import Client, RefusedError
from service.packing import pack
from tests.cluster.gated import ENDED
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import Serving
from tests.waiting import wait_for
from workers.errors import Reason

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TASK = Path(__file__).parent / "ending_task"
ALL_S = 240.0
BATCH = 4
STEPS = 6
STANDSTILL = 1e-30
"""A learning rate at which no weight changes."""

LIMIT_BYTES = 3 * 2**29
NEXT_TO_1 = {"fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A job that fails by what ``spec`` has besides; ``summary``, ``details`` and ``remedy`` are words of `explain`.

    ``steps`` is how far it trained, ``saved`` the steps of its checkpoints.
    """

    spec: Mapping[str, Any]
    reason: Reason
    summary: tuple[str, ...]
    remedy: str
    details: tuple[str, ...] = ()
    logs: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    saved: tuple[int, ...] = ()


FAILING = {
    "over-its-memory": Failing(
        spec={"entrypoint": "train:is_greedy", "resources": {"memory_bytes": LIMIT_BYTES}},
        reason=Reason.OUT_OF_MEMORY,
        summary=("one sample of Linear (16 bytes", f"resources.memory_bytes={LIMIT_BYTES}", "smaller"),
        details=("on rank 0 in round 2", "8589934592 bytes"),
        remedy="Give each worker more memory (`resources.memory_bytes`)",
        logs={"out of memory at 4 samples a forward pass; going on with 2": 1},
        steps=1,
    ),
    "diverged": Failing(
        spec={"entrypoint": "train:build", "optimizer": {"lr": 1e30}, "steps": 30},
        reason=Reason.DIVERGED,
        summary=("was not finite for 20 steps on end", "last loss inf", "lower optimizer.lr"),
        details=("on rank 0 in round 21",),
        remedy="Lower `optimizer.lr`",
        steps=20,
    ),
    "dependency": Failing(
        spec={"entrypoint": "train:build", "dependencies": ["nobody-has-this==1.0"], "env": {"PIP_NO_INDEX": "1"}},
        reason=Reason.DEPENDENCY_FAILED,
        summary=("The installer's last lines:\nERROR: ", "No matching distribution found for nobody-has-this==1.0"),
        remedy="Correct `dependencies`",
        logs={"ERROR: No matching distribution found for nobody-has-this==1.0": 2},
    ),
    "cursed": Failing(
        spec={"entrypoint": "train:is_cursed", "retry": {"max_failures": 2}},
        reason=Reason.USER_ERROR,
        summary=("ValueError: this step is cursed", "failed 3 times", "retry.max_failures=2"),
        details=("on rank 0 in round 4", "in take_the_cursed_step", 'raise ValueError(Marked("this step is cursed"))'),
        remedy="Correct the code",
        logs={"Traceback (most recent call last)": 3, "ValueError: this step is cursed": 3},
        steps=3,
        saved=(3,),
    ),
    "no-entrypoint": Failing(
        spec={"entrypoint": "train:built"},
        reason=Reason.USER_ERROR,
        summary=("entrypoint 'train:built'", "module 'train' has no 'built'", "did you mean 'build'?"),
        remedy="Correct the code",
    ),
    "no-data": Failing(
        spec={"entrypoint": "train:has_no_data"},
        reason=Reason.USER_ERROR,
        summary=("train_data is empty (0 samples)", "give at least one sample"),
        remedy="Correct the code",
    ),
    "eval-without-data": Failing(
        spec={"entrypoint": "train:evaluates_nothing"},
        reason=Reason.USER_ERROR,
        summary=("returned evaluate without eval_data", "give both for an evaluation, or neither"),
        remedy="Correct the code",
    ),
    "metric-without-eval": Failing(
        spec={"entrypoint": "train:build", "checkpoint": {"metric": "eval.error"}},
        reason=Reason.USER_ERROR,
        summary=("checkpoint.metric='eval.error' needs an evaluation", "return eval_data and evaluate, or leave"),
        remedy="Correct the code",
    ),
}
SUCCEEDING: Mapping[str, Mapping[str, Any]] = {
    "first": {"precision": "fp32"},
    "fp16": {"precision": "fp16"},
    "bf16": {"precision": "bf16"},
}

DIGITS = {
    "entrypoint": "workers.recipes.digits:build",
    "bundle": None,
    "steps": 60,
    "workers": 2,
    "batch": {"global_size": 64, "micro_size": 32},
    "optimizer": {"lr": 3e-3},
}
EXCHANGING: Mapping[str, Mapping[str, Any]] = {
    "dense": {**DIGITS, "communication": "none"},
    "int4": {**DIGITS, "communication": {"scheme": "int4"}},
    "topk": {**DIGITS, "communication": {"scheme": "topk", "options": {"fraction": 0.1}, "loss_class": "lossy"}},
}


class Jobs:
    """All jobs by name."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._bundle = client.upload(pack(TASK).data)["id"]
        self._ids: dict[str, str] = {}

    def submit(self, name: str, **changes: Any) -> None:
        spec = {
            "name": name,
            "entrypoint": "train:build",
            "bundle": self._bundle,
            "steps": STEPS,
            "workers": 1,
            "batch": {"global_size": BATCH},
            "optimizer": {"lr": 0.1, "base_batch": BATCH},
            "lr_schedule": {"warmup_fraction": 0, "decay": "constant"},
            "precision": "fp32",
            **changes,
        }
        self._ids[name] = self.client.submit(spec)["id"]

    def id_of(self, name: str) -> str:
        return self._ids[name]

    def job(self, name: str) -> dict[str, Any]:
        return self.client.job(self._ids[name])

    def of(self, name: str, what: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/jobs/{self._ids[name]}/{what}")
        return found

    def logs(self, name: str) -> str:
        return self.client.logs(self._ids[name]).text

    def steps_saved(self, name: str) -> list[int]:
        return [checkpoint["step"] for checkpoint in self.of(name, "checkpoints")["checkpoints"]]

    def wait(self, *names: str) -> None:
        def states() -> dict[str, str]:
            return {name: self.job(name)["state"] for name in names}

        wait_for("all ends", lambda: all(s in ENDED for s in states().values()), ALL_S, told=lambda: str(states()))

    def end(self) -> None:
        """Leave nothing running, however the tests ended."""
        for name in self._ids:
            if self.job(name)["state"] not in ENDED:
                self.client.command(self._ids[name], "cancel")
        self.wait(*self._ids)


@pytest.fixture(scope="module")
def jobs(served: Serving) -> Iterator[Jobs]:
    with served.client() as client:
        made = Jobs(client)
        try:
            for name, changes in (SUCCEEDING | EXCHANGING).items():
                made.submit(name, **changes)
            for name, failing in FAILING.items():
                made.submit(name, **failing.spec)
            made.wait("first")
            origin = {"job": made.id_of("first")}
            made.submit("heir", init_from=origin, optimizer={"lr": STANDSTILL}, precision="auto")
            made.wait(*SUCCEEDING, *EXCHANGING, *FAILING, "heir")
            yield made
        finally:
            made.end()


def weights(jobs: Jobs, name: str, folder: Path) -> Path:
    """The file that a user downloads at the end."""
    target = folder / f"{name}.safetensors"
    jobs.client.download(f"/jobs/{jobs.id_of(name)}/checkpoints/{STEPS}", target)
    return target


@pytest.mark.parametrize("name", FAILING)
def test_a_job_that_fails_says_what_was_wrong_and_what_to_do(jobs: Jobs, name: str) -> None:
    failing, job, told = FAILING[name], jobs.job(name), jobs.of(name, "explain")
    assert (job["state"], job["reason"], job["attempt"]) == ("FAILED", failing.reason, 1), told
    assert (job["progress"]["step"], jobs.steps_saved(name)) == (failing.steps, list(failing.saved))
    assert job["workers"]["current"] == 0
    for words in failing.summary:
        assert words in told["summary"]
    for words in failing.details:
        assert words in "\n".join(told["details"])
    assert told["remedy"].startswith(failing.remedy)
    logs = jobs.logs(name)
    assert {words: logs.count(words) for words in failing.logs} == failing.logs, logs
    (last,) = jobs.of(name, "events")["events"][-1:]
    assert (last["to"], last["reason"]) == ("FAILED", failing.reason)


def test_code_that_raises_in_each_try_of_a_step_is_tried_as_often_as_the_spec_allows(jobs: Jobs) -> None:
    rows = [row for row in jobs.of("cursed", "timeline")["timeline"] if row["kind"] == "failure"]
    tries = [row["reason"] for row in rows if "trying the same round again" in row["reason"]]
    assert len(tries) == 2
    for number, reason in enumerate(tries, 1):
        assert f"(failure {number}, 2 are allowed)" in reason
    assert "saving before the job fails" in rows[-1]["reason"]


@pytest.mark.parametrize("name", SUCCEEDING)
def test_a_precision_that_is_asked_for_is_what_it_computes_in(jobs: Jobs, name: str, tmp_path: Path) -> None:
    asked = SUCCEEDING[name]["precision"]
    assert (jobs.job(name)["state"], jobs.job(name)["reason"]) == ("SUCCEEDED", None)
    (start,) = [row for row in jobs.of(name, "timeline")["timeline"] if row["kind"] == "start"]
    assert start["after"]["precision"] == {"format": asked, "why": "asked for in the spec"}
    points = jobs.of(name, "metrics")["points"]
    assert [point["values"]["user.next_to_1"] for point in points] == [NEXT_TO_1[asked]] * STEPS
    assert all(("loss_scale" in point["values"]) == (asked == "fp16") for point in points)
    assert points[-1]["values"]["loss"] < points[0]["values"]["loss"]
    assert {str(numbers.dtype) for numbers in load_file(weights(jobs, name, tmp_path)).values()} == {"float32"}


def test_gradients_in_fewer_bytes_train_as_well(jobs: Jobs) -> None:
    points = {name: jobs.of(name, "metrics")["points"] for name in EXCHANGING}
    for name, (first, *_, last) in points.items():
        assert (jobs.job(name)["state"], jobs.job(name)["reason"]) == ("SUCCEEDED", None)
        assert last["values"]["loss"] < first["values"]["loss"] / 4
    for name, options in (("int4", {}), ("topk", {"fraction": 0.1, "quantise": "int8"})):
        (start,) = [row for row in jobs.of(name, "timeline")["timeline"] if row["kind"] == "start"]
        assert start["after"]["communication"] == {"scheme": name, **options, "why": "asked for in the spec"}
    # The least: on a busy machine TCP sends some bytes again.
    dense, int4, topk = (min(p["values"]["wire_bytes"] for p in points[name]) for name in ("dense", "int4", "topk"))
    assert 7.0 < dense / int4 < 8.0
    assert 6.0 < dense / topk < 9.0


def test_a_job_begins_with_the_weights_of_the_one_that_it_names(jobs: Jobs, tmp_path: Path) -> None:
    assert jobs.job("heir")["state"] == "SUCCEEDED"
    first, heir = weights(jobs, "first", tmp_path), weights(jobs, "heir", tmp_path)
    assert load_file(first)["weight"].all(), "weights are zeros before they are trained"
    assert heir.read_bytes() == first.read_bytes(), "at such a learning rate none changes"
    (start,) = [row for row in jobs.of("heir", "timeline")["timeline"] if row["kind"] == "start"]
    precision, exchange = start["after"]["precision"], start["after"]["communication"]
    assert precision["why"].startswith(f"auto: {precision['format']}, ")
    assert "measured" in precision["why"]
    assert (exchange["scheme"], exchange["why"].startswith("auto: as they are")) == ("none", True)
    assert f"with the weights of the latest checkpoint of job {jobs.id_of('first')}" in start["reason"]


def test_what_can_be_known_at_submission_is_refused_then(jobs: Jobs) -> None:
    first, empty = jobs.id_of("first"), jobs.id_of("no-data")
    refused: list[tuple[dict[str, Any], str, str]] = [
        (
            {"batch": {"global_size": 2}, "workers": {"min": 3, "max": 4}},
            "/batch/global_size",
            "2 samples cannot be shared by workers.min=3; use at least 3, or lower workers.min",
        ),
        ({"init_from": {"job": "nobody"}}, "/init_from/job", "there is no job 'nobody'; give a job's whole id"),
        ({"init_from": {"job": first, "step": 5}}, "/init_from/step", f"it has: {STEPS}; give one of these, or latest"),
        ({"init_from": {"job": empty}}, "/init_from/job", "has ended (FAILED) without a checkpoint; start from"),
    ]
    for changes, pointer, words in refused:
        with pytest.raises(RefusedError) as info:
            jobs.submit("refused", **changes)
        assert (info.value.status, info.value.code) == (422, "INVALID")
        (problem,) = info.value.problems
        assert problem.pointer == pointer
        assert words in problem.detail
    assert not list(jobs.client.jobs(search="refused"))


def test_nothing_is_left_of_any(jobs: Jobs, served: Serving) -> None:
    assert_service_at_rest(served)

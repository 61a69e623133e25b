"""Building a task from an assignment, each time in a process of its own, as a worker does it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.forking import FORKS, import_before_forking
from tests.training.wheels import write_wheel
from workers.assignment import Assignment, JobKey, Storage
from workers.errors import JobError
from workers.spec import parse_job_spec
from workers.status import Phase
from workers.training.build import build_task

# Once for all of them: torch.
import_before_forking("workers.training.build")

TRAIN = """
import os, random
import numpy, torch
from types import SimpleNamespace
def build(config):
    model = torch.nn.Linear(1, 1)
    model.told = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    model.told += [os.environ.get("MODE"), open("data.txt").read()]
    with open(os.environ["CONCERTINA_OUTPUT"] + "/note.txt", "w") as note:
        note.write("hello")
    return SimpleNamespace(model=model, train_data=[1], loss=lambda m, b: m(b).mean())
"""


def assigned(
    tmp_path: Path, bundle: bytes | None = None, variables: dict[str, str] | None = None, **spec: Any
) -> Assignment:
    document = {"name": "t", "entrypoint": "train:build", "steps": 1, "bundle": "b-1" if bundle else None, **spec}
    return Assignment(
        key=JobKey(job_id="j-1", attempt=1),
        worker_id="1.1",
        spec=parse_job_spec(document),
        storage=Storage(checkpoints=str(tmp_path / "checkpoints"), output=str(tmp_path / "output")),
        scratch=str(tmp_path / "scratch"),
        env=variables or {},
        bundle_sha256=None if bundle is None else hashlib.sha256(bundle).hexdigest(),
    )


def zipped(**files: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "."), content)
    return stream.getvalue()


BUNDLE = zipped(train__py=TRAIN, data__txt="from the bundle")


def in_a_worker(answer_to: Connection, assignment: Assignment, bundle: bytes | None) -> None:
    """What a worker process does, and then tells; it serves nobody after."""
    os.environ["PIP_NO_INDEX"] = "1"
    answer: dict[str, Any] = {"lines": [], "phases": [], "fetched": 0}

    def fetch() -> bytes:
        answer["fetched"] += 1
        assert bundle is not None
        return bundle

    try:
        task = build_task(assignment, fetch, answer["lines"].append, answer["phases"].append)
    except JobError as error:
        answer |= {"error": type(error).__name__, "reason": error.reason, "message": error.message}
    else:
        answer |= {"cwd": os.getcwd(), "path": sys.path, "told": getattr(task.model, "told", None)}
    answer_to.send(answer)


def built(assignment: Assignment, bundle: bytes | None) -> dict[str, Any]:
    ours, theirs = FORKS.Pipe()
    worker = FORKS.Process(target=in_a_worker, args=(theirs, assignment, bundle))
    worker.start()
    theirs.close()
    assert ours.poll(60), "no answer from the worker within 60 s"
    answer: dict[str, Any] = ours.recv()
    worker.join(60)
    return answer


def test_a_bundle_is_built_in_its_own_folder_once_a_node(tmp_path: Path) -> None:
    spec = {"env": {"MODE": "fast"}, "seed": 7}
    assignment = assigned(tmp_path, BUNDLE, {"MODE": "fast"}, **spec)
    folder = tmp_path / "scratch" / "bundles" / hashlib.sha256(BUNDLE).hexdigest()

    first = built(assignment, BUNDLE)
    assert (first["cwd"], first["path"][0], first["fetched"]) == (str(folder), str(folder), 1)
    assert first["told"][3:] == ["fast", "from the bundle"]
    assert (tmp_path / "output" / "note.txt").read_text() == "hello"
    assert folder.stat().st_mode & 0o077 == 0

    second = built(assignment, BUNDLE)
    assert second["fetched"] == 0
    assert second["told"] == first["told"], "every generator is seeded before the entrypoint runs"

    third = built(replace(assignment, spec=assigned(tmp_path, BUNDLE, **{**spec, "seed": 8}).spec), BUNDLE)
    assert not set(third["told"][:3]) & set(first["told"][:3])


def test_a_recipe_needs_no_bundle(tmp_path: Path) -> None:
    answer = built(assigned(tmp_path, entrypoint="workers.recipes.chargpt:build"), None)
    assert "error" not in answer
    assert answer["lines"] == ["building the task: workers.recipes.chargpt:build"]


def test_a_recipe_tells_an_unknown_config_key(tmp_path: Path) -> None:
    wrong = assigned(tmp_path, entrypoint="workers.recipes.digits:build", config={"hiden": 3})
    answer = built(wrong, None)
    assert answer["reason"] == "USER_ERROR"
    assert "unknown config key 'hiden'; did you mean 'hidden'?" in answer["message"]


def test_a_local_wheel_is_there_for_the_entrypoint(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "wheel_of_the_job", source="from json import *\n")
    bundle = zipped(train__py=f"import wheel_of_the_job\n{TRAIN}", data__txt="x", json__py="raise SystemExit('mine')")
    answer = built(assigned(tmp_path, bundle, dependencies=[wheel]), bundle)
    assert "error" not in answer, answer
    assert "dependencies: using wheel_of_the_job-1.0" in answer["lines"]
    assert answer["phases"] == [Phase.INSTALL, Phase.BUILD]
    assert answer["path"][-1].startswith(str(tmp_path / "scratch" / "deps"))


def test_a_missing_dependency_is_told_with_its_remedy(tmp_path: Path) -> None:
    bundle = zipped(train__py="import wheel_that_is_not_there\n")
    answer = built(assigned(tmp_path, bundle), bundle)
    assert answer["error"] == "EntrypointError"
    assert answer["message"].endswith("add 'wheel_that_is_not_there' to `dependencies`")


def test_a_secret_is_in_no_line_and_no_message(tmp_path: Path) -> None:
    assignment = assigned(
        tmp_path, BUNDLE, {"TOKEN": "s3cr3t"}, env={"TOKEN": {"secret": "X"}}, dependencies=["none-such-s3cr3t"]
    )
    answer = built(assignment, BUNDLE)
    assert answer["reason"] == "DEPENDENCY_FAILED"
    assert "none-such-***" in answer["message"]
    assert "s3cr3t" not in json.dumps(answer)


def test_other_bytes_than_were_uploaded_are_refused(tmp_path: Path) -> None:
    answer = built(assigned(tmp_path, BUNDLE), zipped(train__py=""))
    assert (answer["error"], answer["reason"]) == ("BundleError", "BUNDLE_INVALID")
    assert not [p for p in (tmp_path / "scratch" / "bundles").iterdir() if p.suffix != ".lock"]


@pytest.mark.parametrize(
    ("source", "reason", "told"),
    [
        ("def build(config): raise MemoryError", "OUT_OF_MEMORY", "resources.memory_bytes=None"),
        (
            f"{TRAIN}\nold = build\ndef build(config): t = old(config); t.length = 7; return t",
            "USER_ERROR",
            "returned a int as length; give a function",
        ),
        (
            f"{TRAIN}\nold = build\ndef build(config): t = old(config); t.length = t.length_at = len; return t",
            "USER_ERROR",
            "returned `length` and `length_at`; return length_at alone where",
        ),
    ],
)
def test_other_faults_at_start_up_are_told(source: str, reason: str, told: str, tmp_path: Path) -> None:
    bundle = zipped(train__py=source, data__txt="x")
    answer = built(assigned(tmp_path, bundle), bundle)
    assert answer["reason"] == reason, answer
    assert told in answer["message"]


def test_a_bound_in_tokens_needs_a_task_that_tells_lengths(tmp_path: Path) -> None:
    bundle = zipped(train__py=TRAIN, data__txt="x")
    answer = built(assigned(tmp_path, bundle, batch={"max_tokens": 4096}), bundle)
    assert (answer["error"], answer["reason"]) == ("EntrypointError", "USER_ERROR")
    assert answer["message"].startswith("batch.max_tokens=4096 bounds micro-batches by the lengths of their samples")
    assert answer["message"].endswith("or set batch.micro_size instead")

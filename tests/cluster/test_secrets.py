"""A job's code shows its secret in every way that it can: it is in its workers' own logs, and nowhere else."""

from __future__ import annotations

import html
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from service.folders import checkpoints_place, token_file
from tests.cluster.gated import Gated
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import SECRET_LINES, SECRET_NAME, Serving
from tests.waiting import wait_for
from workers.checkpoints import list_checkpoints
from workers.scratch import LOGS
from workers.storage_urls import open_storage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TRAIN = """
import logging
import os
import signal
from itertools import count
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from workers.task import TrainingTask

KEY = os.environ["KEY"]


def build(config):
    print("inherited:", os.environ.get(config["name"]))
    print("printed:", KEY)
    logging.getLogger("mine").error("logged: %s", KEY)
    died, calls = Path(config["folder"], "died"), count(1)

    def loss(model, batch):
        call = next(calls)
        if call == 3 and not died.exists():
            died.touch()
            print("last words:", KEY, end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if call == 8:
            raise KeyError(f"refused: {KEY}")
        return model(batch[0]).square().mean()

    return TrainingTask(model=nn.Linear(2, 1), train_data=TensorDataset(torch.ones(12, 2)), loss=loss)
"""
TRACE = re.compile(b"|".join(line[i : i + 10].encode() for line in SECRET_LINES for i in range(len(line) - 9)))
"""Any ten characters on end of any line of the secret."""


@pytest.fixture
def job(served: Serving, tmp_path: Path) -> Iterator[Gated]:
    """A job that has failed after its first worker died."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    made = Gated(
        served,
        tmp_path,
        code=code,
        workers=1,
        retry={"max_failures": 0},
        env={"KEY": {"secret": SECRET_NAME}},
        config={"name": SECRET_NAME},
    )
    made.loses_all()
    try:
        wait_for("the failure", lambda: made.job()["state"] == "FAILED", 90)
        yield made
    finally:
        made.end()


def files_below(*places: Path) -> Iterator[Path]:
    for folder, _, names in (found for place in places for found in os.walk(place)):
        yield from (path for name in names if (path := Path(folder, name)).is_file())


def shows_secret(path: Path) -> bool:
    try:
        return TRACE.search(path.read_bytes()) is not None
    except FileNotFoundError:
        return False  # it went while others were read


def answers_about(served: Serving, job_id: str) -> Iterator[tuple[str, bytes]]:
    """All that the API tells of a job, all that is linked from its page, and what tells of all jobs."""
    headers = {"Authorization": f"Bearer {token_file(served.home).read_text().strip()}"}
    with httpx2.Client(base_url=served.url, headers=headers, timeout=30) as client:
        calls = client.get("/openapi.json").json()["paths"].items()
        about = [path.replace("{job_id}", job_id) for path, methods in calls if "get" in methods]
        asked = {path for path in about if job_id in path and "{" not in path}
        asked |= {f"/jobs/{job_id}", "/jobs", "/api/v1/jobs", "/metrics"}
        todo = sorted(asked)
        while todo:
            answer = client.get(todo.pop())
            yield answer.url.raw_path.decode(), answer.content
            if "html" in answer.headers["content-type"]:
                links = re.findall(r'(?:href|hx-get)="([^"#]*)', answer.text)
                found = {html.unescape(link) for link in links if job_id in link} - asked
                asked |= found
                todo += found


def test_a_secret_that_the_code_shows_is_in_its_workers_own_logs_and_nowhere_else(served: Serving, job: Gated) -> None:
    for text in ("inherited: None", "printed: ***", "logged: ***", "last words: ***", "KeyError: 'refused: ***"):
        assert text in job.logs()
    assert list_checkpoints(open_storage(checkpoints_place(str(served.home / "storage"), job.id)))
    kept = Path(served.ray().temp_dir)
    found = [path for path in files_below(served.home, kept) if shows_secret(path)]
    assert len(found) == 2
    logs = [path for path in files_below(kept / "scratch" / LOGS / job.id) if path.suffix == ".log"]
    assert sorted(found) == sorted(logs)
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in found} == {0o600}
    answers = dict(answers_about(served, job.id))
    assert "refused: ***" in answers[f"/jobs/{job.id}/parts/explain"].decode()
    assert "refused: ***" in answers[f"/api/v1/jobs/{job.id}/explain"].decode()
    assert [path for path, body in answers.items() if TRACE.search(body)] == []
    assert not TRACE.search(served.told.encode())
    assert_service_at_rest(served)

"""``init_from`` that cannot be had: told as a failure at start-up, which no further try helps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.checkpoints import list_checkpoints
from workers.errors import Failure, Reason
from workers.plan import FreshSource
from workers.storage_urls import join, open_storage
from workers.task import TrainingTask

SPEC = {"steps": 4, "batch": {"global_size": 8}}


def script(model: nn.Module) -> Script:
    return Script(task=lambda: TrainingTask(model=model, train_data=Regression(64, torch.float32), loss=mse))


def failure_of_a_start(source: str | None, **wish: str) -> Failure:
    with Group(script(mlp()), **SPEC, init_from={"job": "job_other", "step": 4, **wish}) as group:
        group.init_from = source
        workers = group.start(2)
        group.train(workers, source=FreshSource())
        stop = group.await_break(workers)[workers[0]].stop
    assert stop is not None
    assert stop.failure is not None
    return stop.failure


def test_weights_that_do_not_fit_fail_before_any_round() -> None:
    with Group(script(nn.Linear(5, 2)), **SPEC) as other:
        workers = other.start(1)
        other.train(workers)
        other.await_done(workers)
        root = str(other.root / "checkpoints")
        failure = failure_of_a_start(join(root, list_checkpoints(open_storage(root))[-1].path))
    assert (failure.reason, failure.round) == (Reason.USER_ERROR, None)
    assert "does not fit the model" in failure.message


def test_a_source_that_is_as_far_as_the_job_goes_fails_before_any_round() -> None:
    with Group(script(mlp()), **SPEC) as other:
        workers = other.start(1)
        other.train(workers)
        other.await_done(workers)
        root = str(other.root / "checkpoints")
        place = join(root, list_checkpoints(open_storage(root))[-1].path)
        failure = failure_of_a_start(place, state="all")
    assert (failure.reason, failure.round) == (Reason.USER_ERROR, None)
    assert "is of sample 32, and the job ends at 32: nothing is left to train on" in failure.message


@pytest.mark.parametrize("is_known", [True, False])
def test_a_source_that_is_gone_fails_before_any_round_and_is_named(tmp_path: Path, is_known: bool) -> None:
    gone = str(tmp_path / "gone")
    failure = failure_of_a_start(gone if is_known else None)
    assert (failure.reason, failure.round) == (Reason.USER_ERROR, None)
    assert (gone if is_known else "the checkpoint 4 of job job_other is gone") in failure.message

"""What a worker tells holds no object of the user's classes: who hears of it could not load them, and must not."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.status import Phase, WorkerStatus
from workers.task import TrainingTask

BATCH, SAMPLES, STEPS = 4, 16, 4


class Name(StrEnum):
    ERROR = "error"


class Number(float):
    """A number with a unit, say."""


class Marked(str):
    """As template engines have it: a text that stays what it is."""

    def __str__(self) -> str:
        return self


class OwnError(Exception):
    pass


class Length(int):
    pass


class Data(Regression):
    def __len__(self) -> int:
        return Length(super().__len__())


class Loading(pickle.Unpickler):
    """Notes the modules of all that is named in what it loads."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.modules: set[str] = set()

    def find_class(self, module_name: str, global_name: str) -> Any:
        self.modules.add(module_name)
        return super().find_class(module_name, global_name)


def modules_in(statuses: Iterable[WorkerStatus]) -> set[str]:
    loading = Loading(pickle.dumps(list(statuses)))
    loading.load()
    return {name.split(".")[0] for name in loading.modules}


def task_of_own_classes() -> TrainingTask:
    calls = [0]

    def loss(model: nn.Module, batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise OwnError(Marked("wrong"))
        return mse(model, batch), {Name.ERROR: Number(0.5), Marked("marked"): torch.tensor(1.0)}

    data = Data(SAMPLES, torch.float32)
    return TrainingTask(
        model=mlp(),
        train_data=data,
        loss=loss,
        eval_data=data,
        evaluate=lambda model, batch: {Name.ERROR: Number(0.5), Marked("marked"): torch.tensor(1.0)},
    )


def test_what_a_worker_tells_is_of_our_classes_alone_whatever_the_users_code_returns_or_raises() -> None:
    spec = {"steps": STEPS, "batch": {"global_size": BATCH}, "checkpoint": {"metric": "eval.error"}}
    with Group(Script(task=task_of_own_classes), **spec) as group:
        workers = group.start(1)
        group.train(workers)
        broken = group.await_all(lambda s: s.phase is Phase.STOPPED, workers)
        (stop,) = [status.stop for status in broken.values()]
        assert stop is not None
        assert stop.failure is not None
        assert (stop.failure.type, stop.failure.message) == ("OwnError", "wrong")
        group.train(workers)
        done = group.await_done(workers)
    told = {key for record in group.records.values() for key in record.values}
    assert {"user.error", "user.marked", "eval.error", "eval.marked"} <= told
    assert any(status.checkpoints for status in done.values())
    assert modules_in([*broken.values(), *done.values()]) == {"workers"}

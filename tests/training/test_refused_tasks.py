"""Tasks that cannot be trained are refused before a step, with what to do; those that look like them are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from tests.training.test_models import BATCH, DTYPE, SAMPLES, STEPS, adamw
from workers.errors import Reason
from workers.status import Phase
from workers.task import TrainingTask


def test_workers_that_built_different_tasks_are_told_so() -> None:
    sizes = iter([20, 21])

    def build() -> TrainingTask:
        return TrainingTask(model=mlp(DTYPE), train_data=Regression(next(sizes), DTYPE), loss=mse)

    with Group(Script(task=build), steps=3, batch={"global_size": BATCH}) as group:
        workers = group.start(1) + group.start(1)
        group.train(workers)
        statuses = group.await_all(lambda s: s.phase is Phase.STOPPED, workers)
    failures = [s.stop.failure for s in statuses.values() if s.stop and s.stop.failure]
    assert failures
    assert "workers built different tasks" in failures[0].message


class Remembering(nn.Linear):
    """Keeps something with its weights that no checkpoint can hold."""

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        return


def test_a_model_that_no_checkpoint_can_hold_fails_before_its_first_step() -> None:
    def build() -> TrainingTask:
        return TrainingTask(
            model=Remembering(5, 2).to(DTYPE), train_data=Regression(SAMPLES, DTYPE), optimizer=adamw, loss=mse
        )

    with Group(Script(task=build), steps=STEPS, batch={"global_size": BATCH}) as group:
        (worker,) = group.start(1)
        status = group.await_all(lambda s: s.phase is Phase.FAILED, [worker])[worker]
    assert status.failure is not None
    assert status.failure.reason is Reason.USER_ERROR
    assert "'_extra_state' is a dict; weights can hold tensors only" in status.failure.message


class Lazy(nn.Sequential):
    """Learns the sizes of its layers from the first batch."""

    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))


def test_a_model_that_waits_for_its_first_batch_is_refused_with_what_to_do() -> None:
    def build() -> TrainingTask:
        return TrainingTask(model=Lazy(), train_data=Regression(SAMPLES, torch.float32), loss=mse)

    with Group(Script(task=build), steps=STEPS, batch={"global_size": BATCH}) as group:
        (worker,) = group.start(1)
        failure = group.poll()[worker].failure
    assert failure is not None
    assert (failure.reason, failure.type) == (Reason.USER_ERROR, "UserCodeError")
    assert "without a shape yet (0.weight, 0.bias, 1.weight, 1.bias, 1.running_mean and 1 more)" in failure.message
    assert "`with torch.no_grad(): model(batch)`" in failure.message


def test_a_lazy_model_that_has_seen_a_batch_trains() -> None:
    def build() -> TrainingTask:
        model = Lazy()
        with torch.no_grad():
            model(torch.zeros(2, 5))
        return TrainingTask(model=model, train_data=Regression(SAMPLES, torch.float32), loss=mse)

    with Group(Script(task=build), steps=2, batch={"global_size": BATCH}) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)


class Twice(torch.optim.SGD):
    """Somebody's own optimizer that asks for the loss again."""

    def step(self, closure: Callable[[], Any], *, scale: float = 1.0) -> Any:  # type: ignore[override]  # as users write
        closure()
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (torch.optim.LBFGS, "the optimizer LBFGS cannot step without 'closure'"),
        (Twice, "the optimizer Twice cannot step without 'closure'"),
        (lambda p, lr: torch.optim.SparseAdam(p, lr=lr), "the optimizer SparseAdam takes sparse gradients only"),
    ],
)
def test_an_optimizer_that_one_dense_gradient_a_step_does_not_serve_is_refused_with_what_to_use(
    make: Callable[..., torch.optim.Optimizer], told: str
) -> None:
    def build() -> TrainingTask:
        return TrainingTask(model=mlp(DTYPE), train_data=Regression(SAMPLES, DTYPE), loss=mse, optimizer=make)

    with Group(Script(task=build), steps=STEPS, batch={"global_size": BATCH}) as group:
        (worker,) = group.start(1)
        failure = group.poll()[worker].failure
    assert failure is not None
    assert (failure.reason, failure.type, failure.round) == (Reason.USER_ERROR, "UserCodeError", None)
    assert told in failure.message
    assert failure.message.endswith("such as AdamW")


@pytest.mark.parametrize(
    ("optimizer", "has"),
    [
        (lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9), "SGD has momentum"),
        (
            lambda p, lr: torch.optim.Adam(p, torch.tensor(lr), betas=(torch.tensor(0.9), torch.tensor(0.99))),
            "Adam has betas",
        ),
        (None, "AdamW has betas"),
    ],
)
def test_momentum_is_not_given_twice(optimizer: Callable[..., torch.optim.Optimizer] | None, has: str) -> None:
    def build() -> TrainingTask:
        return TrainingTask(model=mlp(DTYPE), train_data=Regression(SAMPLES, DTYPE), loss=mse, optimizer=optimizer)

    asked = {"scheme": "topk", "options": {"momentum": 0.9}, "loss_class": "lossy"}
    with Group(Script(task=build), steps=STEPS, batch={"global_size": BATCH}, communication=asked) as group:
        (worker,) = group.start(1)
        failure = group.poll()[worker].failure
    assert failure is not None
    assert (failure.reason, failure.round) == (Reason.USER_ERROR, None)
    assert f"communication.options.momentum is 0.9, and the optimizer {has} besides; build it" in failure.message

"""Errors of the optimizer in mid-commit: that worker ends and says why, and the others go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training.tasks import Script, mse
from tests.training.test_faults import NO_MEMORY, Once, expected, job, task_with
from workers.errors import Reason
from workers.status import Phase


@pytest.mark.parametrize(
    ("error", "reason", "told"),
    [
        (RuntimeError("no room for the momentum"), Reason.USER_ERROR, "no room for the momentum"),
        (
            NO_MEMORY,
            Reason.OUT_OF_MEMORY,
            "memory ran out in the optimizer's step (resources.memory_bytes=None): RuntimeError: DefaultCPUAllocator: "
            "can't allocate memory; give workers more memory, use an optimizer that keeps less, or make the model "
            "smaller",
        ),
    ],
)
def test_an_error_in_the_optimizer_step_ends_that_worker(error: Exception, reason: Reason, told: str) -> None:
    models: list[nn.Module] = []
    once, calls = Once(), [0]

    class Fragile(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            calls[0] += 1
            if once(calls[0] >= 7):
                raise error
            return super().step(closure)

    def fragile(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return Fragile(parameters, lr=lr, momentum=0.9)

    with job(Script(task=task_with(mse, models, optimizer=fragile)), resources={"gpus": 0}) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_break(workers)
        failed = [i for i, s in statuses.items() if s.phase is Phase.FAILED]
        assert len(failed) == 1
        failure = statuses[failed[0]].failure
        assert failure is not None
        assert (failure.reason, failure.message, failure.is_in_commit) == (reason, told, True)
        survivor = next(i for i in workers if i not in failed)
        group.train([survivor, *group.start(1)])
        group.await_done([survivor])
        losses = group.losses()
    assert losses == pytest.approx(expected().losses, abs=1e-10)

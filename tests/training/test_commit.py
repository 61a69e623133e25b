"""Errors of the optimizer in mid-commit: that worker ends and says why, and the others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.group import WAIT_S
from tests.training.tasks import Script, mse
from tests.training.test_faults import NO_MEMORY, Once, expected, job, task_with
from workers.checkpoints import PIECES, list_checkpoints
from workers.errors import Reason
from workers.local_storage import LocalStorage
from workers.status import Phase
from workers.storage import Data


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

    with job(Script(task=task_with(mse, models, optimizer=fragile))) as group:
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


def test_what_was_saved_before_is_written_before_that_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    is_open, write = threading.Event(), LocalStorage.write

    def gated(storage: LocalStorage, key: str, parts: Iterable[Data]) -> int:
        assert not key.startswith(PIECES) or is_open.wait(WAIT_S)
        return write(storage, key, parts)

    class Fragile(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            self.calls += 1
            if self.calls > 3:
                raise RuntimeError("no room for the momentum")
            return super().step(closure)

    monkeypatch.setattr(LocalStorage, "write", gated)
    task = task_with(mse, [], optimizer=lambda parameters, lr: Fragile(parameters, lr=lr))
    with job(Script(task=task), checkpoint={"every_steps": 2}) as group:
        [worker] = group.start(1)
        group.train([worker])
        group.await_all(lambda status: status.phase is Phase.FAILED, [worker])
        session, storage = group.sessions[worker], LocalStorage(group.root / "checkpoints")
        has_waited = not session.wait_ended(0.0)
        is_open.set()
        assert session.wait_ended(WAIT_S)
        assert [found.round for found in list_checkpoints(storage)] == [2]
    assert has_waited

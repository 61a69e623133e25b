"""What a round does when the user's code, the memory or a number fails: redone, and as if nothing had been."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse, reset
from workers.errors import Reason
from workers.plan import Member
from workers.status import Phase, StopCause, WorkerStatus
from workers.task import TrainingTask

BATCH, SAMPLES, STEPS, LR = 12, 40, 10, 0.05
DTYPE = torch.float64


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def expected(steps: int = STEPS, model: nn.Module | None = None) -> reference.Reference:
    model = model or mlp(DTYPE)
    data = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, steps)
    return reference.train(model, sgd(model.parameters(), LR), data, mse)


class Once:
    """True the first time that the condition holds, on whichever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_used = False

    def __call__(self, condition: bool = True) -> bool:
        with self._lock:
            fires = condition and not self._is_used
            self._is_used |= fires
            return fires


def task_with(loss: Callable[..., Any], models: list[nn.Module], **more: Any) -> Callable[[], TrainingTask]:
    def task() -> TrainingTask:
        models.append(model := mlp(DTYPE))  # not models[-1]: ranks build at the same time
        values = {"train_data": Regression(SAMPLES, DTYPE), "optimizer": sgd, **more}
        return TrainingTask(model=model, loss=loss, **values)

    return task


def job(script: Script, **spec: Any) -> Group:
    return Group(script, **{"steps": STEPS, "batch": {"global_size": BATCH}, "optimizer": {"lr": LR}, **spec})


def stopped(status: WorkerStatus) -> bool:
    return status.phase is Phase.STOPPED


def causes(statuses: dict[str, WorkerStatus]) -> dict[str, StopCause]:
    return {i: s.stop.cause for i, s in statuses.items() if s.stop is not None}


def test_an_exception_of_the_users_code_is_told_and_the_round_is_tried_again() -> None:
    models: list[nn.Module] = []
    once, calls = Once(), [0]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        if once(calls[0] >= 10):
            raise ValueError("a bug of the user's")
        return mse(model, batch)

    with job(Script(task=task_with(loss, models))) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_break(workers)
        failures = [s.stop.failure for s in statuses.values() if s.stop and s.stop.cause is StopCause.USER]
        assert StopCause.USER in causes(statuses).values()
        assert set(causes(statuses).values()) & {StopCause.PEER, StopCause.ABORTED}
        assert [f.message for f in failures if f] == ["a bug of the user's"]
        assert failures[0] is not None
        assert failures[0].reason is Reason.USER_ERROR
        assert failures[0].round == (statuses[workers[0]].round or 0) + 1
        assert 'raise ValueError("a bug' in failures[0].traceback
        group.train(workers)
        group.await_done(workers)
        losses = group.losses()
    plain = expected()
    assert losses == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)


def test_weights_of_zero_step_after_step_are_told_as_such_and_not_as_divergence() -> None:
    with Group(Script(task=task_with(mse, [], weight=lambda batch: 0.0)), steps=100, batch={"global_size": 4}) as group:
        workers = group.start(1)
        group.train(workers)
        status = group.await_break(workers)[workers[0]]
    assert status.stop is not None
    assert status.stop.failure is not None
    assert status.stop.failure.message.startswith("weight returned 0 for all micro-batches of a step")


def test_memory_that_runs_out_halves_the_micro_batch_of_that_rank_alone() -> None:
    models: list[nn.Module] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) > 2:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        return mse(model, batch)

    def roomy(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model, batch) if model is models[0] else mse(model, batch)

    with job(Script(task=task_with(roomy, models))) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_done(workers)
        losses = group.losses()
    plain = expected()
    assert sorted(s.micro_size or 0 for s in statuses.values()) == [1, 6]  # 6, 3, 1
    assert sorted([(c.before, c.after) for c in s.micro_changes] for s in statuses.values()) == [[], [(6, 3), (3, 1)]]
    assert all(change.cost_s > 0 for s in statuses.values() for change in s.micro_changes)
    assert losses == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)


NO_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize(
    ("micro_size", "error", "told"),
    [
        ("auto", NO_MEMORY, "(resources.memory_bytes=None): RuntimeError: DefaultCPUAllocator: can't allocate memory;"),
        (3, NO_MEMORY, "can't allocate memory; set batch.micro_size to auto or lower it, give workers"),
        ("auto", MemoryError(), "(resources.memory_bytes=None): MemoryError; give workers more memory"),
    ],
)
def test_samples_that_do_not_fit_fail_with_model_bytes_and_remedy(
    micro_size: object, error: Exception, told: str
) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        raise error

    batch = {"global_size": BATCH, "micro_size": micro_size}
    with job(Script(task=task_with(loss, [])), batch=batch, resources={"gpus": 0}) as group:
        workers = group.start(1)
        group.train(workers)
        status = group.await_all(lambda s: s.phase is Phase.FAILED, workers)[workers[0]]
    assert status.failure is not None
    assert status.failure.reason is Reason.OUT_OF_MEMORY
    assert "of Sequential (" in status.failure.message
    assert told in status.failure.message
    assert ("one sample" if micro_size == "auto" else "batch.micro_size=3 samples") in status.failure.message


def test_an_evaluation_that_does_not_fit_is_told_as_a_lack_of_memory_too() -> None:
    def evaluate(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        raise MemoryError

    with job(
        Script(task=task_with(mse, [], eval_data=Regression(4, DTYPE), evaluate=evaluate)), eval_every_steps=1
    ) as group:
        workers = group.start(1)
        group.train(workers)
        status = group.await_all(lambda s: s.phase is Phase.FAILED, workers)[workers[0]]
    assert status.failure is not None
    assert status.failure.reason is Reason.OUT_OF_MEMORY
    assert status.failure.message.startswith("one sample of Sequential (")


class _OutOfMemoryInBackward(torch.autograd.Function):
    """Passes its input through; backward fails when told to."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fails: Callable[[], bool]) -> torch.Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.fails():
            raise RuntimeError("can't allocate memory")
        return grad, None


class Wide(nn.Module):
    """Large enough for two buckets, so that one has left when the first layer's backward fails."""

    def __init__(self, fails: Callable[[], bool]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 800), nn.Linear(800, 800)
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = _OutOfMemoryInBackward.apply(self.first(x), self.fails)
        return self.last(torch.tanh(hidden))[:, :2]


def wide(fails: Callable[[], bool]) -> Wide:
    model = Wide(fails).to(DTYPE)
    reset(model, 3, scale=0.05)
    return model


def test_memory_that_runs_out_after_gradients_have_left_ends_the_round_for_all() -> None:
    once, calls = Once(), [0]

    def fails() -> bool:
        calls[0] += 1
        return once(calls[0] > 5)

    models: list[nn.Module] = []

    def task() -> TrainingTask:
        models.append(model := wide(fails))
        return TrainingTask(model=model, train_data=Regression(SAMPLES, DTYPE), loss=mse, optimizer=sgd)

    with job(Script(task=task)) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_break(workers)
        assert StopCause.MEMORY in causes(statuses).values()
        assert set(causes(statuses).values()) & {StopCause.PEER, StopCause.ABORTED}
        group.train(workers)
        statuses = group.await_done(workers)
        assert sorted(s.micro_size or 0 for s in statuses.values()) == [3, 6]
        losses = group.losses()
    plain = expected(model=wide(lambda: False))
    assert losses == pytest.approx(plain.losses, abs=1e-10)
    assert min(reference.distance(plain.model, m) for m in models) < 1e-10


def test_memory_that_a_measured_round_alone_lacks_in_mid_exchange_leaves_the_micro_batches_their_size() -> None:
    models: list[nn.Module] = []

    def task() -> TrainingTask:
        model = wide(lambda: bool(model.last.weight._backward_hooks))  # as while the gradient noise is measured
        models.append(model)
        return TrainingTask(model=model, train_data=Regression(SAMPLES, DTYPE), loss=mse, optimizer=sgd)

    with job(Script(task=task)) as group:
        workers = group.start(2)
        group.train(workers)
        num_breaks = 0
        while StopCause.MEMORY in causes(group.await_break(workers)).values():
            num_breaks += 1
            assert num_breaks <= 2 * len(workers)  # each measures with less memory, then not at all
            group.train(workers)
        assert num_breaks >= 2
        statuses = group.await_done(workers)
        assert [s.micro_changes for s in statuses.values()] == [(), ()]
        losses = group.losses()
    plain = expected(model=wide(lambda: False))
    assert losses == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)


def test_a_loss_that_is_not_finite_is_passed_over_and_told() -> None:
    models: list[nn.Module] = []
    once, calls = Once(), [0]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        return mse(model, batch) * (float("nan") if once(calls[0] >= 5) else 1.0)

    with job(Script(task=task_with(loss, models))) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)
        records = [record for _, record in sorted(group.records.items())]
    skipped = [r for r in records if r.is_skipped]
    assert len(records) == STEPS
    assert len(skipped) == 1
    assert "loss" not in skipped[0].values
    assert [r.cursor for r in records] == [BATCH * (i + 1) for i in range(STEPS)]
    assert reference.distance(models[0], models[1]) == 0.0


@pytest.mark.parametrize(("steps", "num_skipped"), [(100, 20), (7, 7)])
def test_twenty_rounds_on_end_that_are_not_finite_or_all_there_are_are_a_divergence(
    steps: int, num_skipped: int
) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return mse(model, batch) * float("inf")

    with job(Script(task=task_with(loss, [])), steps=steps) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_all(lambda s: s.phase is Phase.FAILED, workers)
        num_records = len(group.records)
    failures = [s.failure for s in statuses.values()]
    assert num_records == num_skipped - 1
    assert all(f is not None and f.reason is Reason.DIVERGED for f in failures)
    assert f"for {num_skipped} steps on end" in failures[0].message  # type: ignore[union-attr]  # just asserted


def test_a_global_batch_below_the_number_of_workers_is_refused() -> None:
    with job(Script(task=task_with(mse, [])), batch={"global_size": 2}) as group:
        workers = group.start(3)
        group.train(workers)
        statuses = group.await_all(stopped, workers)
    failure = statuses[workers[0]].stop.failure  # type: ignore[union-attr]  # it stopped
    assert failure is not None
    assert failure.type == "BatchSplitError"
    assert "batch.global_size=2 does not reach 3 workers" in failure.message


def test_a_broken_sample_is_named() -> None:
    class Holey(Regression):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            if index == 5:
                raise KeyError("lost")
            return super().__getitem__(index)

    with job(Script(task=task_with(mse, [], train_data=Holey(SAMPLES, DTYPE)))) as group:
        workers = group.start(1)
        group.train(workers)
        status = group.await_all(stopped, workers)[workers[0]]
    assert status.stop is not None
    assert status.stop.failure is not None
    assert status.stop.failure.type == "DataError"
    assert "train_data[5] raised KeyError" in status.stop.failure.message


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda model, batch: 1.0, "loss returned a float"),
        (
            lambda model, batch: (mse(model, batch), {"note": "x"}),
            "loss returned 'x' under 'note'; return a number there",
        ),
        (lambda model, batch: (mse(model, batch), {"n": torch.zeros(2)}), "return a number there"),
        (lambda model, batch: model(batch[0]), "a tensor of shape [12, 2]"),
        (lambda model, batch: mse(model, batch).detach(), "depends on no parameter"),
        (lambda model, batch: (mse(model, batch), {7: 1.0}), "a value under 7; name it by a text"),
    ],
)
def test_a_loss_of_the_wrong_kind_is_explained(returned: Callable[..., Any], told: str) -> None:
    with job(Script(task=task_with(returned, []))) as group:
        workers = group.start(1)
        group.train(workers)
        status = group.await_all(stopped, workers)[workers[0]]
    assert status.stop is not None
    assert status.stop.failure is not None
    assert told in status.stop.failure.message


def test_a_member_of_weight_zero_adds_zeros() -> None:
    models: list[nn.Module] = []
    with job(Script(task=task_with(mse, models))) as group:
        workers = group.start(2)
        group.train([Member(worker_id=workers[0], rank=0, weight=0.0), Member(worker_id=workers[1], rank=1)])
        group.await_done(workers)
        losses = group.losses()
    plain = expected()
    assert losses == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)


def test_the_last_batch_may_leave_ranks_without_a_sample() -> None:
    models: list[nn.Module] = []
    with job(Script(task=task_with(mse, models)), steps=None, samples=2 * BATCH + 2) as group:
        workers = group.start(3)
        group.train(workers)
        group.await_done(workers)
        losses, last = group.losses(), group.records[1, 3]
    model = mlp(DTYPE)
    optimizer = sgd(model.parameters(), LR)
    batches = list(reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, 3))
    batches[2] = [column[:2] for column in batches[2]]
    plain = reference.train(model, optimizer, iter(batches), mse)
    assert (last.samples, last.values["global_batch"]) == (2, 2)
    assert losses == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)

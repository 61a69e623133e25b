"""Memory that runs out while the gradient noise is measured: the job trains as if nobody measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.plan import Member
from workers.status import Phase, WorkerStatus
from workers.task import TrainingTask
from workers.training import noise
from workers.training.gradient_squares import Measure

SAMPLES, BATCH, STEPS, LR = 400, 14, 24, 0.05


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr)


class Lack:
    """A loss and a measure for which memory runs out ``num_times``; ``sizes`` are the passes that went through."""

    def __init__(self, num_times: int) -> None:
        self.num_left = num_times
        self.sizes: set[int] = set()
        self.models: list[nn.Module] = []

    def fire(self) -> None:
        if self.num_left > 0:
            self.num_left -= 1
            raise MemoryError("none left")

    def loss_if(self, condition: Callable[[nn.Module, int], bool]) -> Callable[[nn.Module, Any], torch.Tensor]:
        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            if condition(model, len(batch[0])):
                self.fire()
            self.sizes.add(len(batch[0]))
            return mse(model, batch)

        return loss


def is_measured(model: nn.Module, size: int) -> bool:
    return any(p._backward_hooks for p in model.parameters())


def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_INTERVAL", "MAX_INTERVAL", "_EARLY_INTERVAL"):
        monkeypatch.setattr(noise, name, 1)


def trained(lack: Lack, weights: Sequence[float], loss: Any = mse, optimizer: Any = adam) -> Mapping[str, WorkerStatus]:
    def build() -> TrainingTask:
        lack.models.append(model := mlp())
        return TrainingTask(model=model, train_data=Regression(SAMPLES, torch.float32), loss=loss, optimizer=optimizer)

    with Group(
        Script(task=build), steps=STEPS, batch={"global_size": BATCH}, optimizer={"lr": LR, "base_batch": BATCH}
    ) as group:
        ids = group.start(len(weights))
        group.train([Member(worker_id=i, rank=rank, weight=weights[rank]) for rank, i in enumerate(ids)])
        statuses = group.await_done(ids)
    plain = mlp()
    batches = reference.batches(Regression(SAMPLES, torch.float32), BATCH, 0, STEPS)
    expected = reference.train(plain, optimizer(plain.parameters(), LR), batches, mse).model
    assert all(reference.distance(expected, model) < 1e-4 for model in lack.models)
    assert [change for status in statuses.values() for change in status.micro_changes] == []
    return statuses


def told(statuses: Mapping[str, WorkerStatus]) -> list[int]:
    """The rounds that told a noise scale, the same of every worker."""
    by_worker = [[r.round for r in s.records if "noise_scale" in r.values] for s in statuses.values()]
    assert all(rounds == by_worker[0] for rounds in by_worker)
    return by_worker[0]


def test_a_pass_that_fits_without_being_measured_keeps_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    every_round(monkeypatch)
    lack = Lack(num_times=1)
    rounds = told(trained(lack, (8.0, 6.0), lack.loss_if(is_measured)))
    assert lack.num_left == 0
    assert lack.sizes == {8, 6}
    assert rounds == list(range(3, STEPS + 1))  # of the second, what one rank lacks no round tells by the others alone


def test_a_worker_that_never_has_the_memory_measures_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    every_round(monkeypatch)
    lack = Lack(num_times=10**6)
    assert told(trained(lack, (8.0, 6.0), lack.loss_if(is_measured))) == []
    assert 10**6 - lack.num_left <= 2 * 2  # twice a worker
    assert lack.sizes == {8, 6}


def test_memory_that_the_arithmetic_of_measuring_lacks_costs_not_even_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    every_round(monkeypatch)
    lack, square = Lack(num_times=2), Measure.square
    passes = [0]

    def failing(measure: Measure, *given: Any) -> Any:
        lack.fire()
        return square(measure, *given)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        passes[0] += 1
        return mse(model, batch)

    monkeypatch.setattr(Measure, "square", failing)
    statuses = trained(lack, (8.0, 6.0), loss)
    assert passes == [2 * STEPS]
    assert told(statuses)[-1] == STEPS


def test_a_half_that_does_not_fit_while_measured_leaves_the_whole_its_size() -> None:
    lack = Lack(num_times=1)
    rounds = told(trained(lack, (1.0,), lack.loss_if(is_measured)))
    assert lack.num_left == 0
    assert rounds == []  # the one split round of so few
    assert max(lack.sizes) == BATCH


def test_the_summed_gradient_is_measured_in_slices_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    every_round(monkeypatch)
    before = trained(Lack(0), (8.0, 6.0))
    lack, square_of_all = Lack(num_times=1), Measure.square_of_all

    def failing(measure: Measure, gradients: Sequence[torch.Tensor]) -> float:
        lack.fire()
        return square_of_all(measure, gradients)

    monkeypatch.setattr(Measure, "square_of_all", failing)
    after = trained(lack, (8.0, 6.0))
    assert lack.num_left == 0
    values = [[r.values["noise_scale"] for s in each.values() for r in s.records[1:]] for each in (before, after)]
    assert values[1] == pytest.approx(values[0], rel=1e-3)


def test_an_average_that_lacks_a_measurement_changes_the_optimizer_as_those_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every_round(monkeypatch)
    lack, square_of_all, hit = Lack(num_times=2), Measure.square_of_all, list[int]()

    def failing(measure: Measure, gradients: Sequence[torch.Tensor]) -> float:
        hit.append(threading.get_ident())
        if hit[0] == hit[-1]:  # one worker alone: the first measurement, and once more with less memory
            lack.fire()
        return square_of_all(measure, gradients)

    def build() -> TrainingTask:
        lack.models.append(model := mlp())
        return TrainingTask(model=model, train_data=Regression(SAMPLES, torch.float32), loss=mse, optimizer=adam)

    monkeypatch.setattr(Measure, "square_of_all", failing)
    with Group(Script(task=build), samples=BATCH * STEPS, batch={"global_size": BATCH}, optimizer={"lr": LR}) as group:
        ids = group.start(2)
        group.train(ids, until=8 * BATCH)
        group.await_all(lambda status: status.phase is Phase.HELD, ids)
        assert group.plan is not None
        group.agree(ids, generation=group.plan.generation, global_batch=2 * BATCH, until=None)
        statuses = group.await_done(ids)
    assert lack.num_left == 0
    assert any(record.samples == 2 * BATCH for status in statuses.values() for record in status.records)
    assert reference.distance(*lack.models) == 0.0

"""Training in a group comes out as plain PyTorch alone would have it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse, reset
from workers.task import TrainingTask
from workers.training.state import TrainingState

BATCH = 12
UNEVEN = 11  # parts of 6 and 5, or of 4, 4 and 3
NUM_SAMPLES = 50

OptimizerOf = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, OptimizerOf] = {
    "default": lambda p, lr: torch.optim.AdamW(p, lr=lr),
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1),
    "adamax": lambda p, lr: torch.optim.Adamax(p, lr=lr),
    "nadam": lambda p, lr: torch.optim.NAdam(p, lr=lr),
    "radam": lambda p, lr: torch.optim.RAdam(p, lr=lr),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr),
    "adadelta": lambda p, lr: torch.optim.Adadelta(p, lr=lr),
    "adafactor": lambda p, lr: torch.optim.Adafactor(p, lr=lr),
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, momentum=0.5, centered=True),
    "rprop": lambda p, lr: torch.optim.Rprop(p, lr=lr),
    # By foreach, which torch takes on a GPU by itself, the rate is computed in fp32 and not in fp64: 1e-8 apart.
    "asgd": lambda p, lr: torch.optim.ASGD(p, lr=lr, foreach=False),
    "muon": lambda p, lr: torch.optim.Muon(p, lr=lr),
}


def model_for(name: str) -> nn.Sequential:
    """In fp64; a net without vectors for the optimizer that takes matrices only."""
    if name != "muon":
        return mlp(torch.float64)
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False)).to(torch.float64)
    reset(model, 3)
    return model


def test_every_optimizer_that_torch_has_is_trained_with_here_or_refused() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    trained_with = {type(make([parameter], 0.01)) for make in OPTIMIZERS.values()}
    known = {found for found in vars(torch.optim).values() if isinstance(found, type)}
    known = {found for found in known if issubclass(found, torch.optim.Optimizer)}
    assert known - trained_with == {torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam}


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_on_any_number_of_workers_equals_a_plain_loop_in_fp64_for_every_optimizer(
    name: str, num_workers: int
) -> None:
    steps, lr = 6, 0.01
    models: list[nn.Module] = []

    def task() -> TrainingTask:
        models.append(mine := model_for(name))
        optimizer = None if name == "default" else OPTIMIZERS[name]
        return TrainingTask(
            model=mine, train_data=Regression(NUM_SAMPLES, torch.float64), loss=mse, optimizer=optimizer
        )

    with Group(Script(task=task), steps=steps, batch={"global_size": UNEVEN}, optimizer={"lr": lr}) as group:
        workers = group.start(num_workers)
        group.train(workers)
        group.await_done(workers)
        losses = group.losses()

    model = model_for(name)
    data = reference.batches(Regression(NUM_SAMPLES, torch.float64), UNEVEN, 0, steps)
    expected = reference.train(model, OPTIMIZERS[name](model.parameters(), lr=lr), data, mse)
    assert losses == pytest.approx(expected.losses, rel=1e-10, abs=1e-10)
    assert [reference.distance(expected.model, m) < 1e-10 for m in models] == [True] * num_workers


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_of_1_3_2_workers_equals_a_plain_loop_in_fp64_for_every_optimizer(name: str) -> None:
    dtype, steps, lr = torch.float64, 18, 0.01
    model = model_for(name)
    gate, script = Gate(), Script()
    script.gate = gate
    models = []

    def task() -> TrainingTask:
        models.append(mine := model_for(name))
        return TrainingTask(
            model=mine,
            train_data=Regression(NUM_SAMPLES, dtype, script),
            loss=mse,
            optimizer=None if name == "default" else OPTIMIZERS[name],
        )

    script.task = task
    with Group(script, steps=steps, batch={"global_size": BATCH}, optimizer={"lr": lr}) as group:
        group.start(3)
        gate.close_at(5 * BATCH)
        group.train(["1.0"])
        gate.await_waiting(1)
        group.agree(["1.0", "1.1", "1.2"])
        gate.close_at(11 * BATCH)
        gate.await_waiting(3)
        group.agree(["1.2", "1.1"])  # the rank that began leaves
        gate.open()
        group.await_done(["1.1", "1.2"])
        losses = group.losses()
        sizes = [int(record.values["workers"]) for _, record in sorted(group.records.items())]

    data = reference.batches(Regression(NUM_SAMPLES, dtype), BATCH, 0, steps)
    expected = reference.train(model, OPTIMIZERS[name](model.parameters(), lr=lr), data, mse)
    assert sizes == [1] * 6 + [3] * 6 + [2] * 6
    assert losses == pytest.approx(expected.losses, rel=1e-10, abs=1e-10)
    distances = sorted(reference.distance(expected.model, m) for m in models)
    assert [d < 1e-10 for d in distances] == [True, True, False]  # both survivors; who left is six steps behind
    assert sorted(script.seen) == sorted(_indexes(steps * BATCH))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_who_takes_over_a_state_steps_on_as_who_gave_it_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    giver, taker = (
        TrainingState(model, OPTIMIZERS[name](model.parameters(), lr=0.01), 0.01)
        for model in (model_for(name).to(dtype), model_for(name).to(dtype))
    )
    for round in range(2):
        step(giver, round)
    taker.adopt(deepcopy(giver.export()))  # it would come over a wire
    for round in range(2, 12):
        step(giver, round)
        step(taker, round)
    pairs = zip(giver.model.parameters(), taker.model.parameters(), strict=True)
    assert all(torch.equal(mine, its) for mine, its in pairs)


def step(state: TrainingState, round: int) -> None:
    draw = torch.Generator().manual_seed(round)
    for parameter in state.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw, dtype=torch.float64).to(parameter.dtype)
    state.optimizer.step()


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_sgd_with_momentum_over_100_steps_in_fp32_equals_a_plain_loop(num_workers: int) -> None:
    dtype, steps, lr = torch.float32, 100, 0.05
    script, models = Script(), []

    def optimizer(parameters: object, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)  # type: ignore[arg-type]  # as users write it

    def task() -> TrainingTask:
        models.append(model := mlp(dtype))
        return TrainingTask(
            model=model, train_data=Regression(NUM_SAMPLES, dtype, script), loss=mse, optimizer=optimizer
        )

    script.task = task
    with Group(script, steps=steps, batch={"global_size": BATCH}, optimizer={"lr": lr, "clip_norm": 0.5}) as group:
        workers = group.start(num_workers)
        group.train(workers)
        group.await_done(workers)
        losses = group.losses()

    model = mlp(dtype)
    data = reference.batches(Regression(NUM_SAMPLES, dtype), BATCH, 0, steps)
    expected = reference.train(model, optimizer(model.parameters(), lr), data, mse, clip_norm=0.5)
    assert losses == pytest.approx(expected.losses, rel=1e-5, abs=1e-5)
    assert all(reference.distance(expected.model, m) < 1e-5 for m in models)


def _indexes(num: int) -> list[int]:
    order: list[int] = []
    epoch = 0
    while len(order) < num:
        order += np.random.Generator(np.random.PCG64([0, epoch])).permutation(NUM_SAMPLES).tolist()
        epoch += 1
    return order[:num]

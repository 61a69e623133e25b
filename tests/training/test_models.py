"""Models that are not a plain stack: tied, unused and frozen parameters, buffers, weights, values besides the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse, reset
from workers.errors import Reason
from workers.task import TrainingTask

BATCH, SAMPLES, STEPS, LR = 12, 40, 8, 0.02
DTYPE = torch.float64


def adamw(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1)


def trained(
    make_model: Callable[[], nn.Module], num_workers: int, *, steps: int = STEPS, **task: Any
) -> tuple[list[nn.Module], Group]:
    """Train copies of a model; the group is closed, its records remain."""
    models: list[nn.Module] = []

    def build() -> TrainingTask:
        models.append(model := make_model())
        values = {"train_data": Regression(SAMPLES, DTYPE), "optimizer": adamw, "loss": mse, **task}
        return TrainingTask(model=model, **values)

    spec = {"steps": steps, "batch": {"global_size": BATCH}, "optimizer": {"lr": LR}, "eval_every_steps": 3}
    with Group(Script(task=build), **spec) as group:
        workers = group.start(num_workers)
        group.train(workers)
        group.await_done(workers)
    return models, group


def plainly(model: nn.Module, loss: Callable[..., Any] = mse) -> reference.Reference:
    data = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS)
    return reference.train(model, adamw(model.parameters(), LR), data, loss)


class Tied(nn.Module):
    """Uses one matrix twice, one parameter never and another only for some samples; one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(5, 5), nn.Linear(5, 5)
        self.out.weight = self.into.weight
        self.head = nn.Linear(5, 2)
        self.never = nn.Parameter(torch.ones(3))
        self.seldom = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.full((2,), 0.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(torch.tanh(self.out(torch.tanh(self.into(x))))) + self.frozen
        is_rare = x[:, 0] > 1.0
        return y + self.seldom * is_rare[:, None] if is_rare.any() else y


def tied() -> nn.Module:
    model = Tied().to(DTYPE)
    reset(model, 5)
    return model


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_tied_unused_and_frozen_parameters_come_out_as_in_a_plain_loop(num_workers: int) -> None:
    models, group = trained(tied, num_workers)
    model = tied()
    trainable = [p for p in model.parameters() if p.requires_grad]
    data = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS)
    plain = reference.train(model, adamw(trainable, LR), data, mse)
    assert group.losses() == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)
    before = tied().state_dict()
    assert torch.equal(models[0].state_dict()["never"], before["never"])  # no weight decay on what nobody used
    assert torch.equal(models[0].state_dict()["frozen"], before["frozen"])


def test_a_parameter_that_is_first_unfrozen_in_the_loss_is_refused_rather_than_left_as_it_is() -> None:
    """A plain loop whose optimizer has it would train it."""
    passes: list[None] = []

    def frozen() -> TrainingTask:
        model = mlp(DTYPE)
        model.get_parameter("0.weight").requires_grad_(False)
        return TrainingTask(model=model, train_data=Regression(SAMPLES, DTYPE), loss=thawing)

    def thawing(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        passes.append(None)
        model.get_parameter("0.weight").requires_grad_(len(passes) > 3)
        return mse(model, batch)

    with Group(Script(task=frozen), steps=STEPS, batch={"global_size": BATCH, "micro_size": BATCH}) as group:
        workers = group.start(1)
        group.train(workers)
        [status] = group.await_break(workers).values()
    assert status.stop is not None
    assert status.stop.failure is not None
    assert status.stop.failure.reason is Reason.USER_ERROR
    assert "a gradient came to the parameter '0.weight', which is not trained" in status.stop.failure.message
    assert status.round == 3


def masked_mse(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """A mean over the units of the batch, of which samples have unequally many, and some none."""
    x, y = batch
    units = num_units(batch[0])
    errors = ((model(x) - y) ** 2).mean(1)
    return (errors * units).sum() / units.sum()


def num_units(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] * 3).round().clamp(min=0)


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("micro_size", ["auto", 1])
def test_a_loss_that_is_a_mean_over_units_stays_exact_however_the_batch_is_cut(
    num_workers: int, micro_size: object
) -> None:
    models: list[nn.Module] = []

    def build() -> TrainingTask:
        models.append(model := mlp(DTYPE))
        return TrainingTask(
            model=model,
            train_data=Regression(SAMPLES, DTYPE),
            loss=masked_mse,
            weight=lambda batch: num_units(batch[0]).sum().item(),
            optimizer=adamw,
        )

    batch = {"global_size": BATCH, "micro_size": micro_size}
    with Group(Script(task=build), steps=STEPS, batch=batch, optimizer={"lr": LR}) as group:
        workers = group.start(num_workers)
        group.train(workers)
        group.await_done(workers)
    plain = plainly(mlp(DTYPE), masked_mse)
    assert group.losses() == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)


def test_values_besides_the_loss_are_means_over_the_batch() -> None:
    def loss(model: nn.Module, batch: Any) -> Any:
        return mse(model, batch), {"mean_x": batch[0].mean(), "two": 2.0}

    _, group = trained(lambda: mlp(DTYPE), 3, loss=loss)
    batches = list(reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS))
    for (_, record), batch in zip(sorted(group.records.items()), batches, strict=True):
        assert record.values["user.mean_x"] == pytest.approx(batch[0].mean().item(), abs=1e-10)
        assert record.values["user.two"] == pytest.approx(2.0)


def test_a_value_besides_the_loss_that_is_no_number_is_told_as_such_of_a_step_that_counts() -> None:
    def loss(model: nn.Module, batch: Any) -> Any:
        return mse(model, batch), {"share": math.nan if (batch[0].cpu() == first).all(dim=1).any() else 1.0}

    (batch, *_) = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS)
    first = batch[0][0]
    _, group = trained(lambda: mlp(DTYPE), 2, loss=loss)
    told = [record.values["user.share"] for _, record in sorted(group.records.items())]
    assert math.isnan(told[0])
    assert 1.0 in told


def test_of_a_step_that_does_not_count_nothing_is_told_that_is_no_number() -> None:
    def loss(model: nn.Module, batch: Any) -> Any:
        wrong = math.nan if (batch[0].cpu() == first).all(dim=1).any() else 1.0
        return mse(model, batch) * wrong, {"share": wrong}

    (batch, *_) = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS)
    first = batch[0][0]
    _, group = trained(lambda: mlp(DTYPE), 2, loss=loss)
    skipped = [record for record in group.records.values() if record.is_skipped]
    assert skipped
    assert not any({"loss", "user.share"} & record.values.keys() for record in skipped)


def normed() -> nn.Module:
    # No bias before the normalisation: its gradient is 0 but for rounding, which AdamW would blow up.
    model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).to(DTYPE)
    reset(model, 4)
    return model


def test_batch_norm_averages_its_running_statistics_by_share() -> None:
    models, group = trained(normed, 2)
    model = normed()
    optimizer, norm = adamw(model.parameters(), LR), model[1]
    losses = []
    for x, y in reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS):
        optimizer.zero_grad()
        anchor = {name: buffer.clone() for name, buffer in norm.named_buffers()}
        total, after = 0.0, dict.fromkeys(anchor, torch.tensor(0.0))
        for part in (slice(0, 6), slice(6, 12)):
            for name, buffer in norm.named_buffers():
                buffer.copy_(anchor[name])
            loss = F.mse_loss(model(x[part]), y[part]) / 2
            loss.backward()
            total += loss.item()
            after = {name: after[name] + buffer / 2 for name, buffer in norm.named_buffers()}
        for name, buffer in norm.named_buffers():
            buffer.copy_(after[name])
        optimizer.step()
        losses.append(total)
    assert group.losses() == pytest.approx(losses, abs=1e-10)
    assert all(reference.distance(model, m) < 1e-10 for m in models)
    assert models[0][1].num_batches_tracked.item() == STEPS


class Averaging(nn.Module):
    """Keeps a running mean of its input in a buffer that nothing announces."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(DTYPE)
        self.register_buffer("mean", torch.zeros(5, dtype=DTYPE))
        self.register_buffer("mask", torch.ones(2, dtype=DTYPE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.inner(x - self.mean) * self.mask


def test_other_buffers_that_change_are_found_and_averaged_too() -> None:
    models, _ = trained(Averaging, 3)
    mean = torch.zeros(5, dtype=DTYPE)
    for x, _ in reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS):
        mean = 0.9 * mean + 0.1 * x.mean(0)
    for model in models:
        assert torch.allclose(model.mean, mean, atol=1e-10)
        assert reference.distance(model, models[0]) == 0.0


def test_evaluation_covers_every_sample_once_at_its_steps_and_at_the_end() -> None:
    held_out = Regression(31, DTYPE)

    def evaluate(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        assert not model.training
        return {"mse": mse(model, batch), "x": batch[0].mean()}

    models, group = trained(normed, 3, eval_data=held_out, evaluate=evaluate)
    with_eval = [key[1] for key, record in sorted(group.records.items()) if "eval.mse" in record.values]
    assert with_eval == [3, 6, 8]
    last = group.records[1, STEPS].values
    model = models[0].eval()
    assert last["eval.mse"] == pytest.approx(F.mse_loss(model(held_out.x), held_out.y).item(), abs=1e-10)
    assert last["eval.x"] == pytest.approx(held_out.x.mean().item(), abs=1e-10)


def test_every_group_of_the_optimizer_keeps_its_ratio_to_the_base_rate() -> None:
    optimizers: list[torch.optim.Optimizer] = []

    def build() -> TrainingTask:
        model = mlp(DTYPE)

        def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
            first, *rest = list(parameters)
            groups = [{"params": [first], "lr": lr / 10}, {"params": rest}]
            optimizers.append(torch.optim.SGD(groups, lr=lr))
            return optimizers[-1]

        return TrainingTask(model=model, train_data=Regression(SAMPLES, DTYPE), loss=mse, optimizer=optimizer)

    schedule = {"warmup_fraction": 0.5, "decay": "linear"}
    spec = {"steps": STEPS, "batch": {"global_size": BATCH}, "optimizer": {"lr": LR}, "lr_schedule": schedule}
    with Group(Script(task=build), **spec) as group:
        workers = group.start(1)
        plan = group.train(workers)
        group.await_done(workers)
    rates = [record.values["lr"] for _, record in sorted(group.records.items())]
    assert rates == [plan.lr.at(i * BATCH, STEPS * BATCH, BATCH) for i in range(STEPS)]
    assert [g["lr"] for g in optimizers[0].param_groups] == pytest.approx([rates[-1] / 10, rates[-1]])


class Looked(nn.Module):
    """Gives sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 2, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table((3 * x[:, 0].abs()).long().clamp(max=6))


def looked() -> nn.Module:
    model = Looked().to(DTYPE)
    reset(model, 5)
    return model


@pytest.mark.parametrize("num_workers", [1, 2])
def test_sparse_gradients_are_taken_as_dense_ones(num_workers: int) -> None:
    models, group = trained(looked, num_workers)
    dense = looked()
    dense.table.sparse = False
    plain = plainly(dense)
    assert group.losses() == pytest.approx(plain.losses, abs=1e-10)
    assert all(reference.distance(plain.model, m) < 1e-10 for m in models)

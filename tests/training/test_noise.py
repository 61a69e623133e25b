"""The gradient noise scale: the estimate against its definition, and what measuring it leaves as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse, reset
from workers.plan import Format, Member, Precision
from workers.task import TrainingTask
from workers.training import gradient_squares, noise
from workers.training.gradient_squares import FLOOR, MIN_STEPS, Measure, PieceSquares
from workers.training.noise import Estimate, estimate

SAMPLES, BATCH, MICRO = 400, 14, 4
STILL = 1e-12
"""A learning rate at which nothing moves, so that every round is of the same gradient."""


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr)


def tokens(batch: list[torch.Tensor]) -> torch.Tensor:
    return 1.0 + 4.0 * (batch[0][:, 0] > 0)


def token_loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    losses = (model(batch[0]) - batch[1]).square().mean(1)
    return (losses * tokens(batch)).sum() / tokens(batch).sum()


def token_weight(batch: list[torch.Tensor]) -> float:
    return float(tokens(batch).sum())


def regression(dtype: torch.dtype = torch.float64, **changed: Any) -> Callable[[], TrainingTask]:
    given = {"loss": mse, "optimizer": sgd, **changed}
    return lambda: TrainingTask(model=mlp(dtype), train_data=Regression(SAMPLES, dtype), **given)


def told_by(
    task: Callable[[], TrainingTask],
    members: Sequence[float] = (1.0,),
    steps: int = 2,
    micro: int | None = MICRO,
    format: Format = Format.FP32,
    **spec: Any,
) -> dict[int, float]:
    """The noise scale by round, of a job whose members have these weights; the same from every member."""
    batch = {"global_size": BATCH, **({} if micro is None else {"micro_size": micro})}
    with Group(Script(task=task), **{"steps": steps, "batch": batch, "optimizer": {"lr": STILL}, **spec}) as group:
        workers = [
            Member(worker_id=worker_id, rank=rank, weight=members[rank])
            for rank, worker_id in enumerate(group.start(len(members)))
        ]
        group.train(workers, precision=Precision(format=format))
        statuses = group.await_done([member.worker_id for member in workers])
    told = [
        {r.round: r.values["noise_scale"] for r in s.records if "noise_scale" in r.values} for s in statuses.values()
    ]
    assert all(one == told[0] for one in told)
    return told[0]


def of_model(models: list[nn.Module], **changed: Any) -> Callable[[], TrainingTask]:
    """A task whose model is put among ``models``."""

    def build() -> TrainingTask:
        task = regression(torch.float32, **changed)()
        models.append(task.model)
        return task

    return build


def plain(steps: int) -> nn.Module:
    model, batches = mlp(), reference.batches(Regression(SAMPLES, torch.float32), BATCH, 0, steps)
    return reference.train(model, sgd(model.parameters(), 0.05), batches, mse).model


def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_INTERVAL", "MAX_INTERVAL", "_EARLY_INTERVAL"):
        monkeypatch.setattr(noise, name, 1)


def gradient(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def by_definition(weights: Sequence[float], gradients: Sequence[torch.Tensor]) -> Estimate:
    """The variance within pooled groups, and what it leaves of the mean's square."""
    total = sum(weights)
    mean = sum((w / total * g for w, g in zip(weights, gradients, strict=True)), torch.zeros(()))
    variance = sum(w * float((g - mean).square().sum()) for w, g in zip(weights, gradients, strict=True))
    variance /= len(weights) - 1
    return Estimate(variance=variance, signal=float(mean.square().sum()) - variance / total)


def brute_force(model: nn.Module, divided_by: torch.Tensor | None = None) -> float:
    """From every single sample's gradient; what batches drawn without replacement estimate."""
    data = Regression(SAMPLES, torch.float64)
    each_ND = torch.stack([gradient(model, mse(model, [data.x[i], data.y[i]])) for i in range(SAMPLES)])
    if divided_by is not None:
        each_ND = each_ND / divided_by
    found = by_definition([1.0] * SAMPLES, list(each_ND))
    return found.variance / found.signal


@pytest.mark.parametrize("split", [(64, 64), (96, 32), (112, 16), (100, 20, 4, 4)])
def test_the_estimate_has_no_bias_however_unequal_the_parts_are(split: tuple[int, ...]) -> None:
    trials, dimension, variance, signal = 4000, 200, 64.0, 1.0
    draw = np.random.default_rng(5)
    mean_D = np.full(dimension, math.sqrt(signal / dimension))
    parts_NTD = [mean_D + draw.normal(0, math.sqrt(variance / dimension / size), (trials, dimension)) for size in split]
    whole_TD = sum(size / sum(split) * part for size, part in zip(split, parts_NTD, strict=True))
    squares_T = sum(size * (part**2).sum(1) for size, part in zip(split, parts_NTD, strict=True))
    found = estimate(float(np.mean(squares_T)), float(np.mean((whole_TD**2).sum(1))), sum(split), len(split))
    assert found.variance == pytest.approx(variance, rel=0.02)
    assert found.signal == pytest.approx(signal, rel=0.02)


@pytest.mark.parametrize(("optimizer", "clip_norm"), [(sgd, None), (adam, None), (adam, 1e-3)])
def test_a_job_tells_what_the_gradients_of_single_samples_come_to(
    optimizer: Callable[..., torch.optim.Optimizer], clip_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noise_is_as_by_brute_force(optimizer, clip_norm, monkeypatch)


def assert_noise_is_as_by_brute_force(
    optimizer: Callable[..., torch.optim.Optimizer], clip_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_round(monkeypatch)
    made: list[torch.optim.Optimizer] = []

    def build(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        made.append(optimizer(parameters, lr))
        return made[-1]

    changed = {"batch": {"global_size": 32, "micro_size": 5}, "optimizer": {"lr": STILL, "clip_norm": clip_norm}}
    told = told_by(regression(optimizer=build), (3.0, 1.0), steps=200, **changed)
    state, divided_by = made[0].state, None
    if optimizer is adam:
        roots = [s["exp_avg_sq"].cpu().sqrt() / math.sqrt(1 - 0.999 ** float(s["step"])) for s in state.values()]
        divided_by = torch.cat([(root + FLOOR * root.square().mean().sqrt()).flatten() for root in roots]) + 1e-8
    assert told[200] == pytest.approx(brute_force(mlp(torch.float64), divided_by), rel=0.1)


EXACT = {"rel": 1e-6}


@pytest.mark.parametrize(
    ("changed", "tolerance"),
    [
        ({"members": (1.0,)}, EXACT),
        ({"members": (8.0, 6.0)}, EXACT),  # the same passes, 4 + 4 and 4 + 2 samples
        ({"members": (8.0, 0.0, 6.0)}, EXACT),
        ({"members": (8.0, 6.0), "optimizer": {"lr": STILL, "clip_norm": 1e-3}}, EXACT),
        ({"members": (8.0, 6.0), "format": Format.FP16}, {"rel": 0.02}),
    ],
)
def test_one_round_tells_the_definition_whatever_the_shares_the_clipping_and_the_loss_scale(
    changed: dict[str, Any], tolerance: dict[str, float]
) -> None:
    dtype = torch.float32 if "format" in changed else torch.float64
    told = told_by(regression(dtype, loss=token_loss, weight=token_weight), **changed)
    model, data = mlp(torch.float64), Regression(SAMPLES, torch.float64)
    _, second = reference.batches(data, BATCH, 0, 2)
    pieces = [[column[begin : begin + MICRO] for column in second] for begin in range(0, BATCH, MICRO)]
    expected = by_definition(
        [token_weight(piece) for piece in pieces], [gradient(model, token_loss(model, piece)) for piece in pieces]
    )
    per_sample = BATCH / token_weight(second)
    assert list(told) == [2]
    assert told[2] == pytest.approx(expected.variance * per_sample / expected.signal, **tolerance)


@pytest.mark.parametrize(("is_host", "is_frugal"), [(True, False), (False, False), (True, True)])
def test_an_adam_like_optimizer_is_measured_by_what_it_divides_by(
    is_host: bool, is_frugal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_squares, "_SLICE_NUMEL", 20)
    monkeypatch.setattr(gradient_squares, "_is_on_host", lambda parameters: is_host)
    model, memory = mlp(torch.float64), dict[int, torch.Tensor]()
    idle = nn.Parameter(torch.ones(3, dtype=torch.float64))
    parameters = [*model.parameters(), idle]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    batches = list(reference.batches(Regression(SAMPLES, torch.float64), BATCH, 0, MIN_STEPS + 2))
    reference.train(model, optimizer, iter(batches[: MIN_STEPS - 1]), mse)
    assert not Measure(parameters, optimizer, memory).is_preconditioned  # too young
    for batch in batches[MIN_STEPS - 1 : -1]:  # another measure before that one, of what is no longer so
        reference.train(model, optimizer, iter([batch]), mse)
        measure = Measure(parameters, optimizer, memory, is_frugal=is_frugal)
        before = measure.square_of_all([torch.ones_like(p) for p in parameters])
    optimizer.zero_grad()

    squares = PieceSquares(parameters, measure, 0.0)
    with squares:
        for weight, batch in ((2.0, batches[0]), (3.0, batches[-1])):
            squares.begin(weight)
            mse(model, batch).backward()
    states = [optimizer.state[p] for p in model.parameters()]
    moments = [s["exp_avg_sq"] / (1 - 0.999 ** (MIN_STEPS + 1)) for s in states]
    divided_by = torch.cat([(m.sqrt() + FLOOR * m.mean().sqrt()).flatten() for m in moments]) + 1e-8
    first, last = (gradient(model, mse(model, batch)) / divided_by for batch in (batches[0], batches[-1]))
    expected = 2.0 * first.square().sum() + 3.0 * last.square().sum()
    assert measure.is_preconditioned
    assert before == pytest.approx(divided_by.reciprocal().square().sum().item(), rel=1e-9)
    assert squares.sums().squares == pytest.approx(expected.item(), rel=1e-9)
    assert squares.sums().num_pieces == 2
    both = measure.square_of_all([p.grad if p.grad is not None else torch.ones_like(p) for p in parameters])
    assert both == pytest.approx((first + last).square().sum().item(), rel=1e-9)


def test_only_measured_rounds_have_hooks_and_all_train_as_in_a_plain_loop() -> None:
    num_hooks: list[int] = []
    models: list[nn.Module] = []

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        num_hooks.append(sum(len(p._backward_hooks or ()) for p in model.parameters()))
        return mse(model, batch)

    told = told_by(of_model(models, loss=loss), steps=20, optimizer={"lr": 0.05})
    num_passes = math.ceil(BATCH / MICRO)
    assert num_hooks == [6 if round in told else 0 for round in range(1, 21) for _ in range(num_passes)]
    assert 2 <= len(told) < 20
    assert reference.distance(models[0], plain(20)) < 1e-6


def test_a_pass_that_fails_leaves_no_hooks() -> None:
    parameter = nn.Parameter(torch.ones(2))
    squares = PieceSquares([parameter], Measure([parameter], sgd([parameter], 0.1), {}), 0.0)

    def fail() -> None:
        with squares:
            squares.begin(1.0)
            parameter.sum().backward()
            raise MemoryError

    for _ in range(2):
        with pytest.raises(MemoryError):
            fail()
        assert not parameter._backward_hooks
    with squares:
        squares.begin(3.0)
        parameter.sum().backward()
    assert squares.sums().squares == pytest.approx(6.0)  # of the last try alone
    assert squares.sums().num_pieces == 1


def test_a_whole_batch_in_one_pass_is_split_in_fixed_rounds_and_trains_as_if_it_were_not() -> None:
    models: list[nn.Module] = []
    told = told_by(of_model(models), steps=40, micro=None, optimizer={"lr": 0.05})
    assert list(told) == [16, 32]
    assert reference.distance(models[0], plain(40)) < 1e-6


def test_a_pass_that_batch_normalisation_makes_one_is_not_split() -> None:
    def build() -> TrainingTask:
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 2))
        reset(model, 3)
        return TrainingTask(model=model, train_data=Regression(SAMPLES, torch.float32), loss=mse, optimizer=sgd)

    assert told_by(build, steps=20, micro=None) == {}
    assert told_by(build, steps=4)


def test_a_batch_that_cannot_be_computed_in_halves_trains_without_a_noise_scale() -> None:
    models: list[nn.Module] = []

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return mse(model, [column.reshape(BATCH, -1) for column in batch])

    assert told_by(of_model(models, loss=loss), steps=40, micro=None, optimizer={"lr": 0.05}) == {}
    assert reference.distance(models[0], plain(40)) < 1e-6


def test_a_gradient_in_parts_is_not_taken_for_a_whole_one() -> None:
    parameter = nn.Parameter(torch.ones(2))
    squares = PieceSquares([parameter], Measure([parameter], sgd([parameter], 0.1), {}), 0.0)
    with squares:
        squares.begin(1.0)
        (2.0 * parameter + 3.0 * parameter).sum().backward()
        assert squares.sums().squares == pytest.approx(50.0)
        parameter.sum().backward()
    assert squares.sums().squares == math.inf


def test_a_round_that_is_not_finite_leaves_the_average_and_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    every_round(monkeypatch)
    calls = [0]

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        calls[0] += 1
        return mse(model, batch) * (math.inf if calls[0] == 4 * 2 + 3 else 1.0)  # in the third round

    told = told_by(regression(loss=loss), steps=5)
    assert list(told) == [2, 4, 5]
    assert all(math.isfinite(value) for value in told.values())


def test_a_newcomer_holds_the_same_average(monkeypatch: pytest.MonkeyPatch) -> None:
    every_round(monkeypatch)
    gate, script = Gate(), Script()
    script.gate = gate
    script.task = lambda: TrainingTask(
        model=mlp(), train_data=Regression(SAMPLES, torch.float32, script), loss=mse, optimizer=sgd
    )
    batch = {"global_size": BATCH, "micro_size": MICRO}
    with Group(script, steps=20, batch=batch, optimizer={"lr": STILL}) as group:
        (first,) = group.start(1)
        gate.close_at(10 * BATCH)
        group.train([first])
        gate.await_waiting(1)
        (second,) = group.start(1)
        group.agree([first, second])
        gate.open()
        statuses = group.await_done([first, second])
    mine, its = (
        {r.round: (r.values["noise_scale"], r.noise_bounds) for r in statuses[i].records if r.round > 1}
        for i in (first, second)
    )
    assert mine[20] == its[20]
    assert [bounds is None for _, bounds in mine.values()] == [True] * 3 + [False] * 16
    assert len(mine) == 19


def test_passes_that_the_spec_fixes_are_not_split() -> None:
    sizes: list[int] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        sizes.append(len(batch[0]))
        return mse(model, batch)

    assert told_by(regression(loss=loss), steps=20, micro=BATCH) == {}
    assert set(sizes) == {BATCH}

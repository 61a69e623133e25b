"""The contract of everything that a round changes besides parameters: staged, then committed or rolled back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.training.tasks import mlp
from workers.training.buffers import BufferState
from workers.training.exchange.factors import Factors
from workers.training.exchange.residual import Residual
from workers.training.exchange.velocity import Velocity
from workers.training.noise import Estimate, NoiseScale
from workers.training.outer import Outer
from workers.training.precision.scaler import GROWTH_INTERVAL, LossScaler
from workers.training.state import StepState


@dataclass
class Subject:
    """An implementer, a round's work with it that ends staged, and what it looks like from outside."""

    state: StepState
    stage: Callable[[], None]
    look: Callable[[], object]


def _scaler_backing_off() -> Subject:
    scaler = LossScaler()
    return Subject(scaler, lambda: scaler.stage(False), scaler.state)


def _scaler_growing() -> Subject:
    scaler = LossScaler()
    scaler.load({"scale": 8.0, "num_finite": GROWTH_INTERVAL - 1})
    return Subject(scaler, lambda: scaler.stage(True), scaler.state)


def _noise() -> Subject:
    scale = NoiseScale()
    found = Estimate(variance=3.0, signal=2.0)
    return Subject(scale, lambda: scale.stage(2, found, is_preconditioned=True, cost=0.1), scale.state)


def _batch_norm() -> Subject:
    model = nn.Sequential(nn.Tanh(), nn.BatchNorm1d(3))
    state = BufferState(model)

    def stage() -> None:
        model(torch.randn(8, 3, generator=torch.Generator().manual_seed(1)))
        place = torch.empty(state.num_values)
        state.encode(1.0, place)
        state.stage(place)

    return Subject(state, stage, lambda: [b.tolist() for b in model.buffers()])


def _outer() -> Subject:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    outer = Outer(model, optimizer)

    def stage() -> None:
        outer.begin([*model.parameters()])
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    return Subject(outer, stage, lambda: [p.tolist() for p in model.parameters()] + [len(optimizer.state)])


def _residual() -> Subject:
    residual = Residual()

    def stage() -> None:
        residual.place(0, torch.zeros(3)).fill_(2.0)

    def look() -> object:
        kept = torch.zeros(3)
        residual.add_to(0, kept)
        return kept.tolist()

    return Subject(residual, stage, look)


def _factors() -> Subject:
    factors, key, device = Factors(), (0, 7), torch.device("cpu")

    def stage() -> None:
        factors.get(key, (3, 2), device)
        factors.stage(key, torch.tensor([[1.0, 0.0], [2.0, 0.0], [2.0, 0.0]]))

    return Subject(factors, stage, lambda: factors.get(key, (3, 2), device).tolist())


def _velocity() -> Subject:
    velocity = Velocity(Residual(), 0.5)

    def look() -> object:
        shown = velocity.of(0, torch.zeros(3)).tolist()
        velocity.rollback()
        return shown

    return Subject(velocity, lambda: velocity.stop(0, _moved(velocity)), look)


def _moved(velocity: Velocity) -> torch.Tensor:
    """One of its values is sent, and rests."""
    velocity.of(0, torch.tensor([1.0, 2.0, 4.0]))
    return torch.tensor([1])


class Rebinding(nn.Module):
    """Writes its buffer by assignment, as plain code does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


def _rebound_buffer() -> Subject:
    model = Rebinding()
    state = BufferState(model)
    state.track(["mean"])

    def stage() -> None:
        model(torch.ones(2, 3))
        place = torch.empty(state.num_values)
        state.encode(1.0, place)
        state.stage(place)

    return Subject(state, stage, lambda: model.mean.tolist())


SUBJECTS = [
    *(_scaler_backing_off, _scaler_growing, _noise, _residual, _outer, _factors, _velocity, _batch_norm),
    _rebound_buffer,
]


@pytest.mark.parametrize("make", SUBJECTS)
def test_what_is_staged_and_rolled_back_never_was(make: Callable[[], Subject]) -> None:
    subject = make()
    before = subject.look()
    subject.stage()
    subject.state.rollback()
    assert subject.look() == before
    subject.state.commit()  # nothing is staged any more
    assert subject.look() == before


@pytest.mark.parametrize("make", SUBJECTS)
def test_what_is_staged_and_committed_stays(make: Callable[[], Subject]) -> None:
    subject = make()
    before = subject.look()
    subject.stage()
    subject.state.commit()
    after = subject.look()
    assert after != before
    subject.state.rollback()
    subject.state.commit()
    assert subject.look() == after


@pytest.mark.parametrize("make", SUBJECTS)
def test_without_anything_staged_nothing_happens(make: Callable[[], Subject]) -> None:
    subject = make()
    before = subject.look()
    subject.state.commit()
    subject.state.rollback()
    assert subject.look() == before


@pytest.mark.parametrize("make", SUBJECTS)
def test_a_round_that_is_tried_again_comes_out_as_if_tried_once(make: Callable[[], Subject]) -> None:
    once, again = make(), make()
    once.stage()
    once.state.commit()
    again.stage()
    again.state.rollback()
    again.stage()
    again.state.commit()
    assert once.look() == again.look()


def test_buffers_are_averaged_by_share_and_counters_are_rounded() -> None:
    model = nn.BatchNorm1d(2)
    first, second = BufferState(model), torch.empty(5)
    model(torch.full((4, 2), 1.0))
    mine = torch.empty(5)
    first.encode(0.75, mine)
    first.rollback()
    model(torch.full((4, 2), 9.0))
    first.encode(0.25, second)
    first.stage(mine + second)
    first.commit()
    assert model.running_mean is not None
    assert model.running_mean.tolist() == pytest.approx([0.3, 0.3])  # 0.1 * (0.75 * 1 + 0.25 * 9)
    assert model.num_batches_tracked is not None
    assert model.num_batches_tracked.item() == 1


def test_only_changed_buffers_outside_of_normalisation_are_noticed() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(3))
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.mask

    model = Masked()
    state = BufferState(model)
    assert state.tracked == []
    model(torch.ones(3))
    assert state.changed() == ["count"]
    state.rollback()
    assert state.changed() == []
    assert model.count.item() == 0

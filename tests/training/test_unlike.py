"""Ranks whose processors round differently: they may part by a little, and not by more."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.fake_store import FakeStore
from tests.training.tasks import mlp
from tests.training.test_replicas import DTYPE, NAME, STEPS, Faulty, flip, message
from tests.training.test_world import in_threads, joined
from workers.status import Phase
from workers.training import replicas
from workers.training.replicas import _distances


@pytest.fixture
def unlike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_processor", lambda device: threading.get_ident())


def shift(model: nn.Module) -> None:
    model.get_parameter(NAME).data.mul_(1.01)  # of one bias of six tensors: 0.1 % of the norm or so


@pytest.mark.usefixtures("unlike")
@pytest.mark.parametrize(("fault", "are_alike"), [(flip, False), (shift, True)])
def test_processors_of_unlike_kinds_may_round_differently_and_are_brought_together_where_that_comes_to_something(
    fault: Callable[[nn.Module], None], are_alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", 4)
    faulty = Faulty(1, 3, fault=fault)
    group, workers = faulty.job(2)
    with group:
        group.train(workers)
        statuses = group.await_done(workers)
        assert len(group.losses()) == STEPS
    cuts = [cut for status in statuses.values() for cut in status.cuts]
    assert [cut.what for cut in cuts] == ["replicas"] * len(workers)
    assert "is checked to 1% or so, as their processors" in cuts[0].reason
    first, second = (model.state_dict() for model in faulty.models)
    assert all(torch.equal(value, second[name]) for name, value in first.items()) == are_alike
    assert reference.distance(faulty.models[0], faulty.models[1]) < 1e-12


class Normed(nn.Module):
    """With statistics and a count of steps that all ranks hold alike, and a mask that is no finite number."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layers = nn.BatchNorm1d(5, dtype=DTYPE), mlp(DTYPE)
        self.register_buffer("mask", torch.full((3,), float("-inf")))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.layers(self.norm(features))
        return rows


class Shared(Normed):
    """Two of its layers keep their statistics in the same buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.BatchNorm1d(5, dtype=DTYPE)
        self.other._buffers.update(self.norm._buffers)


def push(model: nn.Module) -> None:
    model.get_parameter("layers.0.weight").data.mul_(1.003)


@pytest.mark.usefixtures("unlike")
@pytest.mark.parametrize("kind", [Normed, Shared])
def test_a_model_with_statistics_and_a_mask_is_brought_together_as_well(
    kind: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", 4)
    faulty = Faulty(1, 3, fault=push, model=kind)
    group, workers = faulty.job(2)
    with group:
        group.train(workers)
        group.await_done(workers)
        assert len(group.losses()) == STEPS
    first, second = (model.state_dict() for model in faulty.models)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def rank_apart(rank: int, store: FakeStore, changed: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> Any:
    weight, count = changed(rank)
    world = joined(store, rank, 2, "unlike")
    try:
        return _distances([weight], [torch.tensor([1e6, 2e6]), count], world)
    finally:
        world.destroy()


@pytest.mark.parametrize(
    ("factor", "count", "least", "most"), [(1.0, 0, 0.0, 0.0), (1.5, 0, 0.3, 0.4), (1.0, 1, math.inf, math.inf)]
)
def test_neither_statistics_nor_counts_hide_how_far_weights_are_apart(
    factor: float, count: int, least: float, most: float
) -> None:
    def changed(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.ones(1000) * (factor if rank else 1.0)
        return weight, torch.tensor(100_000 + rank * count)

    store = FakeStore()
    found = in_threads(2, lambda rank: rank_apart(rank, store, changed))
    assert found[0] == found[1]
    assert least <= found[0][0][1] <= most


def scale(model: nn.Module) -> None:
    model.get_parameter(NAME).data.mul_(3.0)


@pytest.mark.usefixtures("unlike")
@pytest.mark.parametrize(
    ("num_workers", "victim", "told"),
    [
        (3, 1, "rank 1 (worker 1.1) holds another state than most ranks after round 4, more than 1% of the weights'"),
        (
            3,
            0,
            "rank 0 (worker 1.0) holds another state than most ranks after round 4, more than 1% of the weights'",
        ),
        (2, 1, "rank 0 (worker 1.0), rank 1 (worker 1.1) hold different states after round 4, more than 1% of the"),
    ],
)
def test_of_processors_of_unlike_kinds_one_that_parts_by_more_than_rounding_is_found(
    num_workers: int, victim: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", 4)
    faulty = Faulty(victim, 3, fault=scale)
    group, workers = faulty.job(num_workers)
    with group:
        group.train(workers)
        statuses = group.await_break(workers)
        wrong = [workers[victim]] if "most ranks" in told else workers
        assert all(message(statuses[worker_id]).startswith(told) for worker_id in wrong)
        others = {statuses[worker_id].phase for worker_id in workers if worker_id not in wrong}
        assert others <= {Phase.STOPPED}

"""Batch normalisation: no part of a batch and no pass of it is a single sample, where the batch has two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.training.group import Group
from tests.training.ragged import Pooled, sequence_task
from tests.training.tasks import Regression, Script, mse
from tests.training.test_by_length import LENGTHS
from workers.plan import Member
from workers.status import Phase
from workers.task import TrainingTask
from workers.training.batching import pieces
from workers.training.bounds import Bounds
from workers.training.by_length import deal_by_length
from workers.training.pairs import joined, joined_by_length, paired, shared_by_length


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_parts_are_of_two_samples_at_least_or_of_none_and_change_by_little(sizes: list[int]) -> None:
    left = paired(sizes)
    assert sum(left) == sum(sizes)
    assert 1 not in left or sum(sizes) == 1
    assert all(abs(after - before) <= sizes.count(1) for before, after in zip(sizes, left, strict=True))
    assert left == sizes or 1 in sizes


@given(st.integers(0, 50), st.integers(0, 300), st.integers(2, 60))
def test_a_sample_that_is_left_over_goes_with_those_before_it(begin: int, num_samples: int, size: int) -> None:
    cuts = joined([*pieces(begin, begin + num_samples, size)])
    assert [at for cut in cuts for at in range(*cut)] == list(range(begin, begin + num_samples))
    counts = [end - start for start, end in cuts]
    assert 1 not in counts or num_samples == 1
    assert max(counts, default=0) <= max(size, 3)


@given(LENGTHS, st.integers(1, 4), st.integers(0, 60))
def test_by_length_as_well(lengths: list[int], num_ranks: int, room: int) -> None:
    lengths_N = np.array(lengths)
    bounds = Bounds(max_tokens=int(lengths_N.max()) + room)
    held = deal_by_length(lengths_N, [1.0] * num_ranks, bounds)
    ranks = [joined_by_length(own) for own in shared_by_length(held, lengths_N)]
    assert sorted(np.concatenate([at for own in ranks for at in own]).tolist()) == list(range(len(lengths)))
    assert len(lengths) == 1 or all(len(positions) > 1 for own in ranks for positions in own)
    most = max(int(lengths_N.max()) + room, 3 * int(lengths_N.max()))
    assert all(bounds.taken(lengths_N[positions]) <= most for own in ranks for positions in own)
    assert all((np.diff(lengths_N[np.concatenate(own)]) <= 0).all() for own in ranks if own)


class Normalised(Pooled):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x_BT3: torch.Tensor, there_BT: torch.Tensor) -> torch.Tensor:
        out_B2: torch.Tensor = self.norm(super().forward(x_BT3, there_BT))
        return out_B2


def with_lengths() -> TrainingTask:
    return sequence_task(model=Normalised().to(torch.float64))


def normalised() -> TrainingTask:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))
    return TrainingTask(
        model=model,
        train_data=Regression(99, torch.float32),
        loss=mse,
        optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr),
    )


@pytest.mark.parametrize(
    ("task", "weights", "batch", "num_samples"),
    [
        (normalised, [1.0, 1.0], {"global_size": 32}, 99),  # the last batch has 3
        (normalised, [31.0, 1.0], {"global_size": 32}, 96),
        (normalised, [1.0] * 4, {"global_size": 100, "micro_size": 8}, 300),  # 25 = 3 * 8 + 1
        (with_lengths, [1.0, 1.0], {"global_size": 11, "max_tokens": 90}, 99),
        (with_lengths, [1.0], {"global_size": 11, "micro_size": 2}, 99),
    ],
)
def test_a_model_with_batch_normalisation_trains_however_it_is_shared(
    task: Callable[[], TrainingTask], weights: list[float], batch: dict[str, Any], num_samples: int
) -> None:
    with Group(Script(task=task), samples=num_samples, batch=batch, optimizer={"lr": 0.05}) as group:
        ids = group.start(len(weights))
        group.train([Member(worker_id=i, rank=rank, weight=weights[rank]) for rank, i in enumerate(ids)])
        statuses = group.await_break(ids)
    assert {(s.phase, s.cursor) for s in statuses.values()} == {(Phase.DONE, num_samples)}

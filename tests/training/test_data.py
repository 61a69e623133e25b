"""Each sample of an epoch exactly once, whoever trains and however the batches are cut."""

from __future__ import annotations

import itertools
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset, default_collate

from workers.errors import DataError
from workers.lr import Decay, LrPlan, LrRule
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.training import data
from workers.training.batching import Batcher, own_part, pieces, to_device
from workers.training.data import SampleOrder

CPU = torch.device("cpu")


def made_plan(weights: list[float], global_batch: int) -> Plan:
    return Plan(
        id=PlanId(1, 1),
        switch=Switch.NOW,
        generation=1,
        lineage=1,
        source=FreshSource(),
        members=tuple(Member(worker_id=f"1.{r}", rank=r, weight=w) for r, w in enumerate(weights)),
        global_batch=global_batch,
        lr=LrPlan(lr=1.0, base_batch=1, rule=LrRule.NONE, decay=Decay.CONSTANT),
        cause=Cause(kind=TimelineKind.START, actor="test", reason=""),
    )


@given(
    num_samples=st.integers(1, 60),
    seed=st.integers(0, 2**63 - 1),
    groups=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any), min_size=1, max_size=12),
    batch=st.integers(1, 40),
    micro=st.integers(1, 40),
)
def test_every_epoch_has_every_sample_once_while_workers_and_batches_change(
    num_samples: int, seed: int, groups: list[list[int]], batch: int, micro: int
) -> None:
    order = SampleOrder(num_samples, seed)
    drawn: list[int] = []
    for weights in groups:  # one round each, by another group
        cursor = len(drawn)
        for rank in range(len(weights)):
            begin, end = own_part(made_plan([float(w) for w in weights], batch), rank, batch)
            for low, high in pieces(begin, end, micro):
                drawn += order.indexes(cursor + low, cursor + high).tolist()
    assert len(drawn) == batch * len(groups)
    for epoch in range(len(drawn) // num_samples):
        assert sorted(drawn[epoch * num_samples : (epoch + 1) * num_samples]) == list(range(num_samples))
    rest = drawn[len(drawn) // num_samples * num_samples :]
    assert len(set(rest)) == len(rest)


@given(num_samples=st.integers(1, 50), seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 200), max_size=6))
def test_the_order_does_not_depend_on_how_it_is_asked_for(num_samples: int, seed: int, cuts: list[int]) -> None:
    whole = SampleOrder(num_samples, seed).indexes(0, 200)
    order, edges = SampleOrder(num_samples, seed), [0, *sorted(cuts), 200]
    parts = [order.indexes(low, high) for low, high in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(order.indexes(50, 150), whole[50:150])


def test_epochs_and_seeds_differ() -> None:
    order = SampleOrder(100, 0)
    assert not np.array_equal(order.indexes(0, 100), order.indexes(100, 200))
    assert not np.array_equal(order.indexes(0, 100), SampleOrder(100, 1).indexes(0, 100))


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        SampleOrder(0, 0)


class Broken:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise OSError("disk on fire")
        return index


def test_a_sample_that_cannot_be_read_is_named() -> None:
    with pytest.raises(DataError, match=r"train_data\[7\] raised OSError: disk on fire") as caught:
        data.fetch(Broken(), [1, 7, 2], "train_data", lambda error: False)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_lack_of_memory_while_reading_passes_through() -> None:
    with pytest.raises(OSError, match="disk"):
        data.fetch(Broken(), [7], "train_data", lambda error: True)


def test_samples_that_do_not_collate_are_named() -> None:
    uneven = [torch.zeros(2), torch.zeros(3)]
    with pytest.raises(DataError, match=r"collate of 2 samples of train_data \(indexes \[0, 1\]\)"):
        Batcher(uneven, None, CPU).batch([0, 1])


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (
            [torch.zeros(2), torch.zeros(2), torch.zeros(3)],
            "train_data[1] has shape [3] where train_data[2] has shape [2]",
        ),
        (
            [(np.zeros((2, 4)), 0), (np.zeros((2, 4)), 1), (np.zeros((2, 5)), 2)],
            "train_data[1][0] has shape [2, 5] where train_data[2][0] has shape [2, 4]",
        ),
        (
            [{"x": [1, 2]}, {"x": [1, 2]}, {"x": [1, 2, 3]}],
            "train_data[1]['x'] has a list of 3 where train_data[2]['x'] has a list of 2",
        ),
        (
            [{f"feature_number_{n}": n for n in range(10 - lacking)} for lacking in (0, 0, 1)],
            "train_data[1] has 9 keys where train_data[2] has 10 keys (besides ['feature_number_9'])",
        ),
        (
            [(torch.zeros(2), 0), (torch.zeros(2), np.int64(1)), (torch.zeros(3), 2)],
            "train_data[1][0] has shape [3] where train_data[2][0] has shape [2]",
        ),
        ([{"x": 1}, {"x": 1}, {"y": 1}], "train_data[1] has the keys ['y'] where train_data[2] has the keys ['x']"),
    ],
)
def test_the_sample_that_is_unlike_the_first_is_named_with_what_differs(samples: list[Any], told: str) -> None:
    dataset = [samples[0], samples[2], samples[1]]
    with pytest.raises(DataError) as caught:
        Batcher([dataset[0], dataset[1], dataset[0], dataset[2]], None, CPU).batch([2, 3, 1])
    assert f"; {told}; make the samples alike" in caught.value.message


ONE_LESS: dict[str, Any] = {
    "tensors": lambda samples: default_collate(samples[1:]),
    "images of as many pixels a side": lambda samples: (
        torch.zeros(6, 3, 7, 7),
        torch.stack([y for _, y in samples[1:]]),
    ),
    "named tensors": lambda samples: {"x": torch.stack([x for x, _ in samples[1:]]), "note": "kept"},
}
LAID_OUT_OTHERWISE: dict[str, Any] = {
    "several samples in a row": lambda samples: torch.cat([x for x, _ in samples])[None],
    "time before samples": lambda samples: torch.stack([x for x, _ in samples], dim=1),
    "all tokens after one another, and a label each": lambda samples: (
        torch.cat([x for x, _ in samples])[:5],
        torch.stack([y for _, y in samples]),
    ),
    "two views of each": lambda samples: torch.stack([x for x, _ in samples] * 2),
    "no tensors": lambda samples: [x.tolist() for x, _ in samples[1:]],
}


def rows_of(collate: Any, *, has_rows: bool) -> Any:
    dataset = TensorDataset(torch.randn(9, 3), torch.arange(9))
    return Batcher(dataset, collate, CPU, has_rows=has_rows).batch(range(7))


@pytest.mark.parametrize("collate", ONE_LESS)
def test_a_collate_that_loses_samples_is_told_where_the_loss_is_a_mean_over_them(collate: str) -> None:
    with pytest.raises(DataError, match=r"batch of 6 rows from 7 samples of train_data; .*or give the task `weight`"):
        rows_of(ONE_LESS[collate], has_rows=True)
    rows_of(ONE_LESS[collate], has_rows=False)


@pytest.mark.parametrize("collate", LAID_OUT_OTHERWISE)
def test_a_collate_that_lays_samples_out_otherwise_is_not_taken_for_one_that_loses_them(collate: str) -> None:
    rows_of(LAID_OUT_OTHERWISE[collate], has_rows=True)


def test_a_collate_that_lost_no_row_before_may_not_make_one_of_two_and_none_may_lose_all() -> None:
    dataset = TensorDataset(torch.randn(9, 3), torch.arange(9))

    def drops(samples: Any) -> Any:
        return default_collate(samples if len(samples) > 2 else samples[:1])

    batcher = Batcher(dataset, drops, CPU, has_rows=True)
    batcher.batch(range(7))
    with pytest.raises(DataError, match="batch of 1 rows from 2 samples"):
        batcher.batch(range(2))
    with pytest.raises(DataError, match="batch of 0 rows from 7 samples"):
        rows_of(lambda _: torch.zeros(0, 3), has_rows=True)


def test_a_sample_of_a_subset_that_cannot_be_read_is_named_as_any_other_and_so_is_where_it_is_read() -> None:
    noted: list[int] = []
    indexes = [*range(20, 30), 7, 3]
    subset = Subset(Broken(), range(100))
    with pytest.raises(DataError, match=r"train_data\[7\] raised"):
        data.fetch(subset, indexes, "train_data", lambda error: False, noted.append)
    assert noted == indexes[: indexes.index(7) + 1]


def test_a_sample_that_cannot_be_read_among_many_is_named() -> None:
    class Many(Broken):
        def __getitems__(self, indexes: list[int]) -> list[int]:
            return [self[index] for index in indexes]

    with pytest.raises(DataError, match=r"train_data\[7\] raised"):
        data.fetch(Many(), [*range(20, 30), 7, 3], "train_data", lambda error: False)


def test_a_batch_of_a_mapping_of_its_own_keeps_its_class_on_its_way_to_a_device() -> None:
    batch = UserDict({"a": torch.zeros(2), "b": [torch.ones(1)]})
    moved = to_device(batch, torch.device("meta"))
    assert type(moved) is UserDict
    assert (moved["a"].device.type, moved["b"][0].device.type, batch["a"].device.type) == ("meta", "meta", "cpu")


def test_getitems_is_used_and_must_return_one_sample_an_index() -> None:
    class Many(Broken):
        def __getitems__(self, indexes: list[int]) -> list[int]:
            return indexes[:2]

    assert data.fetch(Many(), [7, 1], "train_data", lambda error: False) == [7, 1]
    with pytest.raises(DataError, match="2 samples for 3 indexes"):
        data.fetch(Many(), [7, 1, 2], "train_data", lambda error: False)


def test_rows_of_tensors_come_as_default_collate_would_give_them() -> None:
    dataset = TensorDataset(torch.randn(9, 3), torch.arange(9))
    batch, expected = Batcher(dataset, None, CPU).batch([8, 0, 3]), default_collate([dataset[i] for i in (8, 0, 3)])
    assert type(batch) is type(expected)
    assert all(
        torch.equal(mine, theirs) and mine.dtype == theirs.dtype for mine, theirs in zip(batch, expected, strict=True)
    )

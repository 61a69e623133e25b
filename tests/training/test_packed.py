"""Packed batches: each sample once, within bounds, in few passes and even shares; a job trains what padded ones do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from tests.training import ragged, reference
from tests.training.group import Group
from tests.training.ragged import LONGEST, Packed, Sample, Sequences, sequence_task
from tests.training.tasks import Script
from tests.training.test_lengths import BATCH, STEPS, Seen, global_batches, plain, records_of, spec
from workers.errors import Reason
from workers.task import TrainingTask
from workers.training.bounds import Bounds
from workers.training.packed import packed, shares
from workers.training.rows import check_packed

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=200)
WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]), min_size=1, max_size=5).filter(any)
MAX_TOKENS = 90


def deal(lengths_N: NDArray[np.int64], weights: Sequence[float], bounds: Bounds) -> list[list[NDArray[np.int64]]]:
    return [packed(own_M, lengths_N, bounds) for own_M in shares(lengths_N, weights)]


def tokens(lengths_N: NDArray[np.int64], own: Sequence[NDArray[np.int64]]) -> list[int]:
    return [int(lengths_N[piece].sum()) for piece in own]


@given(lengths=LENGTHS, weights=WEIGHTS, room=st.integers(0, 2000) | st.none(), most=st.integers(1, 40) | st.none())
def test_every_sample_is_in_one_pass_within_the_bounds_and_no_two_passes_of_a_rank_would_fit_into_one(
    lengths: list[int], weights: list[float], room: int | None, most: int | None
) -> None:
    lengths_N, max_tokens = np.array(lengths), None if room is None else max(lengths) + room
    dealt = deal(lengths_N, weights, Bounds(max_tokens=max_tokens, max_samples=most, is_packed=True))
    pieces = [piece for own in dealt for piece in own]
    assert sorted(np.concatenate(pieces).tolist()) == list(range(len(lengths)))
    assert all(0 < len(piece) <= (most or math.inf) for piece in pieces)
    assert all(not own for own, weight in zip(dealt, weights, strict=True) if weight == 0)
    for own in dealt:
        taken = tokens(lengths_N, own)
        assert max(taken, default=0) <= (max_tokens or math.inf)
        if most is None:
            assert len(own) < 2 or sum(sorted(taken)[:2]) > (max_tokens or math.inf)
        for piece in own:
            assert sorted(lengths_N[piece], reverse=True) == lengths_N[piece].tolist()


@given(lengths=LENGTHS, room=st.integers(0, 1000))
def test_there_are_few_more_passes_than_there_must_be(lengths: list[int], room: int) -> None:
    """Seldom can it be as few as the sum or the long ones ask for, so that the bound is wider than the paper's 11/9."""
    lengths_N, max_tokens = np.array(lengths), max(lengths) + room
    (own,) = deal(lengths_N, [1.0], Bounds(max_tokens=max_tokens, is_packed=True))
    fewest = max(math.ceil(sum(lengths) / max_tokens), sum(length > max_tokens / 2 for length in lengths))
    assert len(own) <= 1.5 * fewest + 1


@given(lengths=LENGTHS, weights=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=6))
def test_no_rank_is_done_later_than_the_even_share_and_one_sample_of_each_other(
    lengths: list[int], weights: list[float]
) -> None:
    """Wherever else its last sample had gone, it would have been done no earlier."""
    lengths_N = np.array(lengths)
    loads = [int(lengths_N[own_M].sum()) for own_M in shares(lengths_N, weights)]
    latest = (sum(loads) + (len(weights) - 1) * max(lengths)) / sum(weights)
    assert all(load / weight <= latest + 1e-9 for load, weight in zip(loads, weights, strict=True))


@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0], [1.0, 2.0, 1.0]])
def test_log_normal_lengths_come_to_even_shares(weights: list[float]) -> None:
    uneven = []
    for seed in range(20):
        drawn = np.random.Generator(np.random.PCG64(seed)).lognormal(4.5, 1.0, 64)
        lengths_N = np.maximum(1, drawn).astype(np.int64)
        loads = [int(lengths_N[own_M].sum()) for own_M in shares(lengths_N, weights)]
        uneven.append(max(np.array(loads) / weights) / (sum(loads) / sum(weights)))
    assert np.mean(uneven) <= 1.01


class SeenPacked(Seen):
    """As ``Seen``, of packed micro-batches."""

    def pack(self, samples: Sequence[Sample]) -> Packed:
        if any(samples[0] is known for known in self.data.samples):  # not those of an evaluation
            self.pad(samples)
        return ragged.pack(samples)

    def taken(self) -> list[int]:
        return [sum(len(self.data.samples[i][0]) for i in own) for own in self.micro_batches]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("bound", [{"max_tokens": MAX_TOKENS}, {"micro_size": 2}, {}])
@pytest.mark.parametrize("weight", [None, ragged.num_packed_tokens])
def test_any_workers_train_what_a_plain_loop_trains_on_the_same_batches_padded_to_their_longest(
    num_workers: int, bound: dict[str, int], weight: Any
) -> None:
    loss = ragged.packed_mean if weight is None else ragged.packed_token_mean
    models: list[nn.Module] = []
    seen = SeenPacked()

    def evaluate(model: nn.Module, batch: Packed) -> dict[str, torch.Tensor]:
        return {"mse": ragged.packed_mean(model, batch)}

    def task() -> TrainingTask:
        models.append(mine := ragged.pooled())
        given = {"eval_data": Sequences(), "evaluate": evaluate, "loss": loss, "weight": weight, "packed": True}
        return sequence_task(model=mine, train_data=seen.data, collate=seen.pack, **given)

    records = records_of(task, num_workers, bound)
    expected = plain([BATCH] * STEPS, ragged.sample_mean if weight is None else ragged.token_mean)
    assert [record.values["loss"] for record in records] == pytest.approx(expected.losses, rel=1e-10, abs=1e-10)
    assert [reference.distance(expected.model, m) < 1e-10 for m in models] == [True] * num_workers
    everything = ragged.pad(Sequences().samples)
    whole = ragged.sample_mean(expected.model, everything).item()
    assert records[-1].values["eval.mse"] == pytest.approx(whole, rel=1e-9)
    drawn = [i for own in seen.micro_batches for i in own]
    assert sorted(drawn) == sorted(i for indexes in global_batches([BATCH] * STEPS) for i in indexes)
    assert max(seen.taken()) <= bound.get("max_tokens", math.inf)
    assert max(map(len, seen.micro_batches)) <= bound.get("micro_size", BATCH)
    assert all(record.values["useful_tokens"] == 1.0 for record in records)


def test_memory_that_runs_out_makes_packed_passes_smaller_and_loses_nothing() -> None:
    seen, batch = SeenPacked(), 40

    def loss(model: nn.Module, given: Packed) -> torch.Tensor:
        if len(given[0]) > LONGEST:
            raise torch.OutOfMemoryError(f"{len(given[0])} tokens")
        return ragged.packed_mean(model, given)

    def task() -> TrainingTask:
        return sequence_task(train_data=seen.data, collate=seen.pack, loss=loss, packed=True)

    with Group(Script(task=task), **{**spec(max_tokens=6 * LONGEST, global_size=batch), "samples": 5 * batch}) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)
        losses, status = group.losses(), group.poll()
    assert losses == pytest.approx(plain([batch] * 5).losses, rel=1e-10, abs=1e-10)
    told = [change for worker in status.values() for change in worker.micro_changes]
    assert told
    assert all(change.unit == "tokens" and " tokens a forward pass" in change.reason for change in told)


def told_at_its_step(task: Callable[[], TrainingTask]) -> str:
    """What is told of that task's error, which is its user's."""
    with Group(Script(task=task), **spec()) as group:
        workers = group.start(1)
        group.train(workers)
        (status,) = group.await_break(workers).values()
    assert status.stop is not None
    failure = status.stop.failure
    assert failure is not None
    assert failure.reason is Reason.USER_ERROR
    return failure.message


def test_a_collate_that_loses_tokens_fails_at_its_step() -> None:
    def task() -> TrainingTask:
        return sequence_task(collate=lambda samples: ragged.pack(samples[:1]), loss=ragged.packed_mean, packed=True)

    told = told_at_its_step(task)
    assert f"collate packed {BATCH} samples, which have " in told
    assert "lay all of them end to end" in told


@pytest.mark.parametrize("weight", [None, ragged.num_tokens])
def test_a_collate_that_pads_what_was_to_lie_end_to_end_fails_at_its_step(weight: Any) -> None:
    """It would take more of memory than `max_tokens`, and be told to be all of use."""

    def task() -> TrainingTask:
        loss = ragged.sample_mean if weight is None else ragged.token_mean
        return sequence_task(loss=loss, weight=weight, packed=True)

    told = told_at_its_step(task)
    assert f"collate padded {BATCH} samples, which have " in told
    assert "lay all of them end to end, or leave `packed` out" in told


def test_one_sample_or_some_of_one_length_may_be_rows_as_they_have_no_padding() -> None:
    for shape, longest in (((1, 7), 7), ((3, 7), 7)):
        given = {"num_tokens": shape[0] * shape[1], "longest": longest, "num_samples": shape[0]}
        check_packed(torch.zeros(shape), **given, is_mean_over_samples=True)

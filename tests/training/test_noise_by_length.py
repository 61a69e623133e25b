"""The gradient noise of samples with lengths: rounds that are measured deal them at random, and train all the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.training import ragged
from tests.training.group import Group
from tests.training.ragged import Packed, Pooled, Sample, Sequences, pooled, sequence_task
from tests.training.tasks import Script
from tests.training.test_noise import STILL, by_definition, gradient, sgd
from workers.lr import Decay, LrPlan, LrRule, gain
from workers.plan import Member, split_batch
from workers.training import draw
from workers.training.at_random import at_random
from workers.training.bounds import Bounds

NUM_SAMPLES, BATCH, ROUNDS = 240, 24, 400


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=120),
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=4).filter(any),
    room=st.integers(0, 2000) | st.none(),
    most=st.integers(1, 40) | st.none(),
    is_packed=st.booleans(),
)
def test_micro_batches_at_random_are_alike_in_samples_in_order_and_within_their_bounds(
    lengths: list[int], weights: list[float], room: int | None, most: int | None, *, is_packed: bool
) -> None:
    lengths_N, max_tokens = np.array(lengths), None if room is None else max(lengths) + room
    bounds = Bounds(max_tokens=max_tokens, max_samples=most, is_packed=is_packed)
    ends = np.cumsum([0, *split_batch(len(lengths), weights)]).tolist()
    by_rank = [at_random(lengths_N, begin, end, bounds) for begin, end in pairwise(ends)]
    found = [own_M for own in by_rank for own_M in own]
    assert [position for own_M in found for position in own_M.tolist()] == list(range(len(lengths)))
    whole = {len(own_M) for own in by_rank for own_M in own[:-1]}
    assert len(whole) <= 1
    assert max(map(len, found)) <= min([*whole, most or math.inf, math.inf])
    assert max(bounds.taken(lengths_N[own_M]) for own_M in found) <= (max_tokens or math.inf)
    assert len(found) >= min(len(lengths), 2)


class Telling(Sequences):
    """Sequences whose length tells of their target, and so of their gradient."""

    def __init__(self) -> None:
        super().__init__(NUM_SAMPLES)
        self.samples = [(x, y + 0.2 * (len(x) - 10)) for x, y in self.samples]


def brute_force(collate: Callable[[Sequence[Sample]], Any], loss: Callable[[nn.Module, Any], torch.Tensor]) -> float:
    """In samples, from every single one's gradient."""
    model, samples = pooled(), Telling().samples
    found = by_definition([1.0] * len(samples), [gradient(model, loss(model, collate([each]))) for each in samples])
    return found.variance / found.signal


def told_by(weights: Sequence[float], steps: int, batch: dict[str, Any], **task: Any) -> dict[int, float]:
    """The noise scale by round, of a job whose members have these weights and change nothing."""
    spec = {"steps": steps, "batch": {"global_size": BATCH, "adapt": "goodput", **batch}, "optimizer": {"lr": STILL}}
    with Group(Script(task=lambda: sequence_task(train_data=Telling(), optimizer=sgd, **task)), **spec) as group:
        members = [
            Member(worker_id=worker_id, rank=rank, weight=weights[rank])
            for rank, worker_id in enumerate(group.start(len(weights)))
        ]
        group.train(members)
        group.await_done([member.worker_id for member in members])
        records = [record for _, record in sorted(group.records.items())]
    assert all(record.is_trial for record in records if "noise_scale" in record.values)
    return {record.round: record.values["noise_scale"] for record in records if "noise_scale" in record.values}


PADDED: dict[str, Any] = {"collate": ragged.pad, "loss": ragged.sample_mean}
PACKED: dict[str, Any] = {"collate": ragged.pack, "loss": ragged.packed_mean, "packed": True}


@pytest.mark.parametrize(
    ("weights", "batch", "task"),
    [
        ([3.0, 1.0], {"max_tokens": 90}, PADDED),
        ([1.0], {}, PADDED),
        ([1.0, 1.0], {"micro_size": 4}, PACKED),
        ([1.0], {"max_tokens": 120}, PACKED),
    ],
)
def test_it_is_what_the_gradients_of_single_samples_come_to_though_lengths_tell_of_them(
    weights: Sequence[float], batch: dict[str, Any], task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "splits", lambda _: True)
    told = told_by(weights, ROUNDS, batch, **task)
    assert len(told) == ROUNDS
    assert told[ROUNDS] == pytest.approx(brute_force(task["collate"], task["loss"]), rel=0.1)


def test_of_a_job_that_follows_the_noise_fixed_rounds_are_measured_and_of_another_none() -> None:
    assert list(told_by([1.0, 1.0], 40, {}, **PACKED)) == [16, 32]
    assert told_by([1.0, 1.0], 40, {"adapt": "fixed"}, **PACKED) == {}


class Normalised(Pooled):
    """What a sample comes to depends on those that are in its pass, which may not be one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)

    def tokens(self, x_BT3: torch.Tensor) -> torch.Tensor:
        out_N2: torch.Tensor = self.outer(torch.tanh(self.norm(self.inner(x_BT3))))
        return out_N2


def test_where_passes_mix_their_samples_they_are_cut_by_length_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "splits", lambda _: True)
    passes: list[int] = []

    def collate(samples: Sequence[Sample]) -> Packed:
        passes.append(len(samples))
        return ragged.pack(samples)

    told = told_by([1.0], 5, {}, **{**PACKED, "collate": collate, "model": Normalised().to(torch.float64)})
    assert told == {}
    assert passes == [BATCH] * 5


def test_a_rate_that_follows_the_noise_follows_it_where_samples_have_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "splits", lambda round: round % 2 == 0)
    base = BATCH // 4
    spec = {"samples": 60 * base, "batch": {"global_size": BATCH, "lr_rule": "adascale"}}
    rule = LrPlan(lr=STILL, base_batch=base, rule=LrRule.ADASCALE, warmup_fraction=0.0, decay=Decay.CONSTANT)
    with Group(Script(task=lambda: sequence_task(train_data=Telling(), optimizer=sgd, **PACKED)), **spec) as group:
        workers = group.start(2)
        group.train(workers, lr=rule)
        group.await_done(workers)
        records = [record for _, record in sorted(group.records.items())]
    noise = [record.values.get("noise_scale") for record in records]
    rates = [record.values["lr"] for record in records]
    assert rates[0] == STILL
    for before, rate in zip(range(1, len(rates), 2), rates[2::2], strict=False):
        assert rate == pytest.approx(STILL * gain(noise[before], base, BATCH))
    assert max(rates) > 1.5 * STILL

"""Buckets that go as they are before the others go by a scheme: each as it goes alone, and what is kept of either."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Regression, Script, mse
from tests.training.test_compression import BATCH, BOUNDS, Job, assert_alike, members, plain
from tests.training.test_schemes import Rank, ranks
from workers.errors import Reason
from workers.exchange_options import Options
from workers.plan import Exchange
from workers.task import TrainingTask
from workers.training.exchange import buckets
from workers.training.exchange.registry import SCHEMES, scheme_named

NUMEL, NUM_BUCKETS, SAMPLES = 400, 3, 64
SHAPES = [[torch.Size([20, 20])]] * NUM_BUCKETS
ROUGH = sorted(SCHEMES.keys() - {"none"})
OPTIONS: dict[str, Options] = {"topk": (("fraction", 0.1),), "powersgd": (("rank", 1),)}


def exchanged(rank: Rank, name: str, round: int, dense_first: int = 0) -> torch.Tensor:
    """What the buckets of a round become, (bucket, value); committed."""
    options: Options = OPTIONS.get(name, ())
    rank.scheme = scheme_named(
        name, rank.residual, (*options, *((("dense_first", dense_first),) if dense_first else ()))
    )
    rank.scheme.prepare(SHAPES)
    rank.scheme.begin(round)
    flats_KN = torch.stack([rank.gradients(NUM_BUCKETS * round + k) for k in range(NUM_BUCKETS)])
    rank.residual.begin(1.0)
    under_way = [rank.scheme.start(k, flat, NUMEL, rank.world) for k, flat in enumerate(flats_KN)]
    for one in under_way:
        assert one is not None
        one.wait()
    rank.residual.came_to(1.0)
    rank.commit()
    return flats_KN


def truth(rank: Rank, round: int) -> torch.Tensor:
    return torch.stack([rank.truth(NUM_BUCKETS * round + k) for k in range(NUM_BUCKETS)])


@pytest.mark.parametrize("name", ROUGH)
@pytest.mark.parametrize("size", [2, 3])
def test_each_bucket_is_what_it_is_by_its_own_scheme_alone(name: str, size: int) -> None:
    mixed = ranks(size, NUMEL, lambda rank: exchanged(rank, name, 0, dense_first=2))
    rough, dense = (ranks(size, NUMEL, lambda rank, one=one: exchanged(rank, one, 0))[0] for one in (name, "none"))
    for found in mixed:
        assert torch.equal(found, torch.cat([dense[:2], rough[2:]]))
    assert not torch.equal(rough[:2], dense[:2])


@pytest.mark.parametrize("name", sorted({*ROUGH} - {"bf16", "fp16"}))
def test_what_was_left_out_of_a_bucket_comes_with_its_first_round_as_it_is(name: str) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
        rank.residual.lay_out([{f"w{k}": torch.Size([20, 20])} for k in range(NUM_BUCKETS)])
        sums = exchanged(rank, name, 0) + exchanged(rank, name, 1, dense_first=2)
        kept = [rank.residual.part(f"w{k}") is not None for k in range(NUM_BUCKETS)]
        assert kept == [False, False, True]
        return sums.double(), truth(rank, 0) + truth(rank, 1)

    for sums, expected in ranks(3, NUMEL, work):
        torch.testing.assert_close(sums[:2], expected[:2], atol=2e-5, rtol=0.0)
        assert (sums[2] - expected[2]).abs().max() > 1e-3


def test_mixes_follow_each_other_in_one_group_and_after_a_worker_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MIB", 8)
    job, mixes = Job(), [Exchange(scheme="int4", options=(("dense_first", n),)) for n in (2, 1)]
    with job.group as group:
        workers = group.start(3)
        job.gate.close_at(10 * BATCH)
        first = group.train(members(workers[:2]), exchange=Exchange(scheme="int4"))
        job.closed_after(10, workers[:2])
        job.gate.close_at(20 * BATCH)
        group.agree(members(workers[:2]), generation=first.generation, exchange=mixes[0])
        job.closed_after(20, workers[:2])
        group.agree(members(workers), generation=first.generation + 1, exchange=mixes[1])
        job.gate.open()
        group.await_done(workers)
    assert_alike(job.models)
    assert 0.0 < reference.distance(job.models[0], plain().model) < BOUNDS["int4"]


@pytest.mark.parametrize(
    ("mebibyte", "dense_first", "told"),
    [
        (
            1,
            3,
            "dense_first is 3, and the gradients leave in 3 buckets of 25 MiB, so that none of them would travel as",
        ),
        (1, 9999, "would travel as int4; give at most 2, make buckets smaller (bucket_mib), or use scheme: none"),
        (
            2**20,
            1,
            "leave in 1 bucket of 25 MiB, so that none of them would travel as int4; leave it out, make buckets",
        ),
        (1, 2, None),
    ],
)
def test_more_dense_buckets_than_leave_something_to_the_scheme_are_refused(
    mebibyte: int, dense_first: int, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MIB", mebibyte)
    wide = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 1, bias=False))
    script = Script(task=lambda: TrainingTask(model=wide, train_data=Regression(SAMPLES, torch.float32), loss=mse))
    asked = {"scheme": "int4", "dense_first": dense_first}
    with Group(script, steps=1, batch={"global_size": BATCH}, communication=asked) as group:
        (worker,) = group.start(1)
        failure = group.poll()[worker].failure
    assert (failure is None) == (told is None)
    if failure is not None:
        assert (failure.reason, failure.round) == (Reason.USER_ERROR, None)
        assert (told or "") in failure.message

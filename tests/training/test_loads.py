"""What a worker tells of its own cost by part, and that it is its own alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.training.group import Group
from tests.training.ragged import sequence_task
from tests.training.tasks import Regression, Script, mlp, mse
from workers.plan import Member, PlanId
from workers.status import WorkerStatus
from workers.task import TrainingTask
from workers.training.exchange.registry import CODECS
from workers.training.loads import LEAST_ROUNDS, LEAST_S, NUM_TOLD, Loads, OwnCost

SLOW_S = 0.1


def cost(seconds: float, samples: int = 8, n: int = 1, tokens: float = 0.0) -> OwnCost:
    return OwnCost(plan_id=PlanId(1, n), samples=samples, seconds=seconds, tokens=tokens)


def test_a_run_is_told_by_its_median_once_it_is_long_enough() -> None:
    loads = Loads()
    for seconds in (0.1, 5.0, 0.2):
        assert not loads.newest()
        loads.add(cost(seconds), step_s=LEAST_S)
    [told] = loads.newest()
    assert (told.n, told.samples, told.num_rounds, told.seconds) == (1, 8, LEAST_ROUNDS, 0.2)
    for _ in range(5):
        loads.add(cost(0.1), step_s=LEAST_S / 5)
    assert [load.num_rounds for load in loads.newest()] == [LEAST_ROUNDS, 5]


def test_a_run_has_one_plan_and_one_part_and_old_runs_are_told_no_more() -> None:
    loads = Loads()
    for changed in (cost(0.1), cost(0.1), cost(0.1, samples=4), cost(0.1, samples=4), cost(0.1, n=2), cost(0.1, n=2)):
        loads.add(changed, step_s=LEAST_S)
    assert not loads.newest()
    for _ in range(LEAST_ROUNDS * (NUM_TOLD + 2)):
        loads.add(cost(0.1), step_s=LEAST_S)
    assert [load.n for load in loads.newest()] == list(range(3, NUM_TOLD + 3))


def test_rounds_of_samples_with_lengths_are_told_by_their_median_token() -> None:
    loads = Loads()
    for seconds, tokens in ((0.1, 10.0), (0.4, 40.0), (6.0, 60.0), (0.7, 70.0), (0.0, 0.0)):
        loads.add(cost(seconds, tokens=tokens), step_s=LEAST_S / 5)
    [told] = loads.newest()
    assert (told.seconds, told.tokens) == (pytest.approx(0.36), 36.0)


def test_a_worker_tells_its_own_seconds_and_not_those_it_waits_for_a_slower_one() -> None:
    def loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        if len(batch[0]) == 3:
            time.sleep(SLOW_S)  # the worker with the part of three; nothing is awaited by it
        return mse(model, batch)

    def task() -> TrainingTask:
        return TrainingTask(model=mlp(), train_data=Regression(40, torch.float32), loss=loss)

    def has_told(status: WorkerStatus) -> bool:
        return bool(status.loads)

    spec = {"steps": 10_000, "batch": {"global_size": 8}, "workers": 2, "resources": {"gpus": 0}}
    with Group(Script(task=task), **spec) as group:
        workers = group.start(2)
        group.train(
            [Member(worker_id=workers[0], rank=0, weight=3.0), Member(worker_id=workers[1], rank=1, weight=5.0)]
        )
        statuses = group.await_all(has_told, workers)
    slow, fast = (statuses[i].loads[-1] for i in workers)
    assert (slow.samples, fast.samples) == (3, 5)
    assert slow.seconds >= SLOW_S
    assert fast.seconds < SLOW_S / 2 < statuses[workers[1]].spans[-1].exposed_s
    for load in (slow, fast):  # what `communication: auto` decides by
        assert load.wire_s is not None
        assert load.backward_s is not None
        assert 0.0 < load.backward_s < load.seconds
        assert load.codec_s == 0.0
    assert [statuses[i].build.buckets for i in workers] == [{25: (1.0,)}] * 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"communication": "none"}, set[str]()),
        ({"communication": "auto"}, {*CODECS}),
        (
            {"communication": {"scheme": "auto", "loss_class": "lossy"}, "resources": {"gpus": 0}},
            {*CODECS, "two_four", "topk", "powersgd"},
        ),
    ],
)
def test_a_worker_tells_what_the_schemes_cost_that_its_job_may_use(asked: dict[str, Any], told: set[str]) -> None:
    def task() -> TrainingTask:
        return TrainingTask(model=mlp(), train_data=Regression(8, torch.float32), loss=mse)

    with Group(Script(task=task), steps=1, batch={"global_size": 8}, workers=2, **asked) as group:
        (worker,) = group.start(1)
        build = group.poll()[worker].build
    assert build is not None
    assert {*build.schemes} == told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_worker_tells_the_bytes_that_a_gradient_has_as_it_is(dtype: torch.dtype) -> None:
    def task() -> TrainingTask:
        return TrainingTask(model=mlp(dtype), train_data=Regression(8, dtype), loss=mse)

    with Group(Script(task=task), steps=1, batch={"global_size": 8}) as group:
        (worker,) = group.start(1)
        build = group.poll()[worker].build
    assert build is not None
    assert build.gradient_bytes == dtype.itemsize


class SlowToRead(Regression):
    """Data that take as long to read as to compute, so that it pays to read ahead."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SLOW_S / 20)
        return super().__getitem__(index)


def test_rounds_by_which_ways_to_read_are_compared_tell_nothing_of_a_workers_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = list[OwnCost]()
    monkeypatch.setattr(Loads, "add", lambda _, cost, step_s: counted.append(cost))

    def loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(SLOW_S / 5)
        return mse(model, batch)

    def task() -> TrainingTask:
        return TrainingTask(model=mlp(), train_data=SlowToRead(40, torch.float32), loss=loss)

    with Group(Script(task=task), steps=60, batch={"global_size": 4, "micro_size": 4}) as group:
        workers = group.start(1)
        group.train(workers)
        (status,) = group.await_done(workers).values()
    on_trial = [record.is_trial for _, record in sorted(group.records.items())]
    assert [change.after for change in status.loader_changes] == ["a reading thread"]
    assert any(on_trial)
    assert not on_trial[0]
    assert not on_trial[-1]
    assert len(counted) == len(on_trial) - sum(on_trial)


def test_a_part_that_is_dealt_by_length_is_told_as_the_share_that_it_is() -> None:
    with Group(Script(task=sequence_task), steps=10_000, batch={"global_size": 12}) as group:
        workers = group.start(2)
        group.train([Member(worker_id=i, rank=rank, weight=3.0 - 2.0 * rank) for rank, i in enumerate(workers)])
        statuses = group.await_all(lambda status: bool(status.loads), workers)
        group.await_all(lambda status: bool(group.records), workers)
    loads = [statuses[i].loads[-1] for i in workers]
    assert [load.samples for load in loads] == [9, 3]
    assert loads[0].tokens / loads[1].tokens == pytest.approx(3.0, rel=0.5)
    steps = [record.tokens for record in group.records.values()]
    assert sum(load.tokens for load in loads) == pytest.approx(sum(steps) / len(steps), rel=0.5)


@pytest.mark.parametrize("samples", [0, 5])
def test_a_part_without_samples_is_told_like_any_other(samples: int) -> None:
    loads = Loads()
    for _ in range(LEAST_ROUNDS):
        loads.add(cost(0.0, samples=samples), step_s=LEAST_S)
    assert [load.samples for load in loads.newest()] == [samples]

"""Each step tells how many samples were really drawn for it, over all ranks, so that one that is short is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from service.cli.counts import wrong_counts
from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.task import TrainingTask
from workers.training.data import SampleOrder

BATCH, STEPS, SHORT_STEP = 12, 4, 3


def task(weight: Any = None) -> TrainingTask:
    return TrainingTask(model=mlp(), train_data=Regression(50, torch.float32), loss=mse, weight=weight)


def trained(script: Script) -> list[str]:
    """What the counts of a job on two workers have against them."""
    with Group(script, steps=STEPS, batch={"global_size": BATCH}) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)
        points = [{"step": key[1], "values": record.values} for key, record in sorted(group.records.items())]
        job = {"spec": group.spec.model_dump(), "progress": {"samples": max(r.cursor for r in group.records.values())}}
    return wrong_counts(job, points)


def test_a_step_for_which_a_rank_drew_one_sample_less_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SampleOrder.indexes
    last = SHORT_STEP * BATCH

    def short(order: SampleOrder, begin: int, end: int) -> Any:
        return right(order, begin, end - 1 if end == last else end)

    assert trained(Script(task=task)) == []
    monkeypatch.setattr(SampleOrder, "indexes", short)
    (told,) = trained(Script(task=task))
    assert told == f"1 of {STEPS} steps had another batch than {BATCH}, the first one step {SHORT_STEP} with 11.0"


def test_samples_of_which_no_unit_counts_were_drawn_too() -> None:
    def first_rank_counts(batch: list[torch.Tensor]) -> float:
        return float(batch[0].sum() > 0)

    assert trained(Script(task=lambda: task(first_rank_counts))) == []


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([1, 2, 4], "the records of steps are not 1 to 4, each once: step 4 stands where 3 should"),
        ([1, 2, 2, 3, 4], "the records of steps are not 1 to 4, each once: step 2 stands where 3 should"),
        ([1, 2, 3], "the records of steps are not 1 to 4, each once: there are 3"),
    ],
)
def test_a_step_that_is_missing_or_twice_is_told(steps: list[int], told: str) -> None:
    job = {"spec": {"steps": STEPS, "batch": {"global_size": BATCH}}, "progress": {"samples": STEPS * BATCH}}
    points = [{"step": step, "values": {"global_batch": float(BATCH)}} for step in steps]
    assert wrong_counts(job, points) == [told]

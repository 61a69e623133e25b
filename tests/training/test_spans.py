"""What a worker tells of its own rounds over time."""

from __future__ import annotations

import pytest
import torch

from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.task import TrainingTask
from workers.training.spans import NUM_TOLD, SPAN_S, RoundCost, Spans


def cost(gpu: float | None = None, memory_bytes: int = 10) -> RoundCost:
    return RoundCost(
        step_s=0.5,
        data_s=0.1,
        compute_s=0.2,
        exposed_s=0.1,
        optimizer_s=0.05,
        memory_bytes=memory_bytes,
        gpu_utilisation=gpu,
    )


def test_rounds_of_one_time_and_rank_are_summed() -> None:
    spans = Spans("1.1")
    for unix_s, rank, used in (
        (100.2, 1, cost(0.2)),
        (104.9, 1, cost(0.8, 30)),
        (104.9, 0, cost()),
        (105.0, 0, cost()),
    ):
        spans.add(rank, unix_s, used)
    first, moved, later = spans.newest()
    assert (first.begin, first.rank, first.num_rounds, first.memory_bytes) == (100, 1, 2, 30)
    assert first.data_s == pytest.approx(0.2)
    assert first.gpu_utilisation == pytest.approx(0.5)
    assert (moved.begin, moved.rank, moved.num_rounds) == (100, 0, 1)
    assert (later.begin, later.rank, later.gpu_utilisation) == (105, 0, None)


def test_only_the_newest_spans_are_kept() -> None:
    spans = Spans("1.1")
    for n in range(50):
        spans.add(0, n * SPAN_S, cost())
    spans.add(0, 3.0, cost())  # the clock was set back
    assert [span.begin for span in spans.newest()] == [n * SPAN_S for n in range(50 - NUM_TOLD, 50)]


def test_every_worker_tells_what_its_own_rounds_cost() -> None:
    script = Script()
    script.task = lambda: TrainingTask(model=mlp(), train_data=Regression(40, torch.float32, script), loss=mse)
    with Group(script, steps=8, batch={"global_size": 4}) as group:
        workers = group.start(2)
        group.train(workers)
        told = [status.spans for status in group.await_done(workers).values()]
    for rank, spans in enumerate(told):
        assert {span.rank for span in spans} == {rank}
        assert sum(span.num_rounds for span in spans) == 8
        assert all(0 < span.compute_s < span.step_s for span in spans)

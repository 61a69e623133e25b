"""``checkpoint.metric`` under a key that `loss` reports, or never does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.checkpoints import list_checkpoints
from workers.local_storage import LocalStorage
from workers.status import Cut
from workers.task import TrainingTask


def trained(metric: str, num_workers: int, *, every_steps: int = 2) -> tuple[list[float | None], tuple[Cut, ...]]:
    """The metrics of the checkpoints of a job whose `loss` reports the margin, and what rank 0 told as cut."""

    def loss(model: Any, batch: Any) -> Any:
        return mse(model, batch), {"margin": 0.5}

    script = Script()
    script.task = lambda: TrainingTask(
        model=mlp(),
        train_data=Regression(16, torch.float32, script),
        eval_data=Regression(4, torch.float32, script),
        loss=loss,
        evaluate=lambda model, batch: {"mse": mse(model, batch)},
    )
    checkpoint = {"every_steps": every_steps, "metric": metric, "keep": 9}
    with Group(script, steps=5, batch={"global_size": 4}, eval_every_steps=3, checkpoint=checkpoint) as group:
        workers = group.start(num_workers)
        group.train(workers)
        first = group.await_done(workers)[workers[0]]
        found = list_checkpoints(LocalStorage(group.root / "checkpoints"))
    return [info.metric for info in found], first.cuts


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_metric_that_loss_reports_marks_every_checkpoint_and_is_told_of_no_lack(num_workers: int) -> None:
    metrics, cuts = trained("user.margin", num_workers)
    assert metrics
    assert set(metrics) == {0.5}
    assert cuts == ()


@pytest.mark.parametrize(("every_steps", "step"), [(2, 2), (100, 3)])
def test_a_metric_that_nothing_reports_is_told_at_the_first_save_or_evaluation(every_steps: int, step: int) -> None:
    metrics, cuts = trained("user.magrin", 2, every_steps=every_steps)
    assert set(metrics) == {None}
    (cut,) = cuts
    assert cut.what == "metric"
    assert f"checkpoint.metric='user.magrin' was not reported until step {step} (reported were: " in cut.reason
    assert "loss, " in cut.reason
    assert "user.margin" in cut.reason
    assert "return it from `loss`, as (loss, {'magrin': value})" in cut.reason

"""A group that stands still at its plan's line: all at one step, evaluated, in memory, until they agree on another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training import reference
from tests.training.group import TERM, Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.checkpoints import list_checkpoints
from workers.local_storage import LocalStorage
from workers.plan import CheckpointSource, Goal, MemberSource, Plan
from workers.status import Phase
from workers.task import TrainingTask

BATCH, SAMPLES, STEPS, LR = 12, 40, 10, 0.02
LINE = 4 * BATCH - 5  # crossed by step 4
DTYPE = torch.float64


def task() -> TrainingTask:
    return TrainingTask(
        model=mlp(DTYPE),
        train_data=Regression(SAMPLES, DTYPE),
        loss=mse,
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
        eval_data=Regression(20, DTYPE),
        evaluate=lambda model, batch: {"mse": mse(model, batch)},
    )


@pytest.fixture
def group() -> Any:
    values = {"steps": STEPS, "batch": {"global_size": BATCH}, "optimizer": {"lr": LR}, "eval_every_steps": 100}
    with Group(Script(task=task), **values) as group:
        yield group


def plain() -> list[float]:
    model = mlp(DTYPE)
    data = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS)
    return reference.train(model, torch.optim.SGD(model.parameters(), lr=LR), data, mse).losses


def await_standing(group: Group, workers: list[str], step: int) -> None:
    """All stand still after this step, which was evaluated, and are still one group."""
    assert group.plan is not None
    plan = group.plan
    held = group.await_all(lambda s: s.phase is Phase.HELD and s.plan == plan, workers)
    assert {(held[i].round, held[i].generation) for i in workers} == {(step, plan.generation)}
    assert "eval.mse" in group.records[group.plan.lineage, step].values


def onward(group: Group, workers: list[str], until: int | None) -> Plan:
    """Another line for the same group."""
    assert group.plan is not None
    return group.agree(workers, generation=group.plan.generation, until=until)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_it_stands_at_each_line_and_what_it_trains_is_the_same(group: Group, num_workers: int) -> None:
    workers = group.start(num_workers)
    group.train(workers, until=LINE)
    await_standing(group, workers, 4)
    onward(group, workers, 7 * BATCH)
    await_standing(group, workers, 7)
    onward(group, workers, None)
    group.await_done(workers)
    assert group.losses() == pytest.approx(plain(), abs=1e-10)


def test_a_line_behind_holds_nobody_up(group: Group) -> None:
    workers = group.start(2)
    group.train(workers, until=LINE)
    await_standing(group, workers, 4)
    onward(group, workers, LINE + 1)  # crossed by the same step
    group.await_all(lambda s: s.phase is Phase.DONE, workers)
    assert group.losses() == pytest.approx(plain(), abs=1e-10)


def test_a_group_of_other_members_stands_at_the_same_line(group: Group) -> None:
    workers = group.start(3)
    group.train(workers[:2], until=LINE)
    await_standing(group, workers[:2], 4)
    group.agree([workers[2], workers[0]], until=LINE)
    await_standing(group, [workers[2], workers[0]], 4)
    group.halt([workers[2], workers[0]])
    group.train([workers[0]], source=MemberSource(workers[0], 4), until=LINE)
    await_standing(group, [workers[0]], 4)
    onward(group, [workers[0]], None)
    group.await_done([workers[0]])
    assert group.losses() == pytest.approx(plain(), abs=1e-10)


def test_what_is_saved_at_a_line_trains_on_from_there(group: Group) -> None:
    first = group.start(2)
    group.train(first, until=LINE)
    await_standing(group, first, 4)
    group.agree(first, goal=Goal.SAVE_AND_STOP)
    group.await_all(lambda s: s.phase is Phase.SAVED, first)
    for worker in first:
        group.sessions[worker].stop(TERM, save=False)
    (saved,) = list_checkpoints(LocalStorage(group.root / "checkpoints"))
    (second,) = group.start(1)
    group.train([second], source=CheckpointSource(saved.path, 4, saved.cursor), lineage=2, until=7 * BATCH)
    await_standing(group, [second], 7)
    onward(group, [second], None)
    group.await_done([second])
    assert group.losses() == pytest.approx(plain(), abs=1e-10)


def test_who_stands_at_a_line_can_be_stopped_and_saves_if_asked(group: Group) -> None:
    (worker,) = group.start(1)
    group.train([worker], until=LINE)
    await_standing(group, [worker], 4)
    session = group.sessions[worker]
    session.stop(TERM, save=True)
    assert session.wait_ended(20)
    assert [c.round for c in list_checkpoints(LocalStorage(group.root / "checkpoints"))] == [4]

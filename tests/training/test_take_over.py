"""A group goes on from the state of another job, in place: equal to a plain loop that trained that state on."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.checkpoints import list_checkpoints
from workers.plan import Cause, TimelineKind
from workers.run_settings import Donor
from workers.status import CheckpointInfo, Phase, StopCause
from workers.storage_urls import open_storage
from workers.task import TrainingTask

DTYPE, NUM_SAMPLES, BATCH, TOTAL = torch.float64, 50, 12, 192
LR, OTHER_LR, NEW_LR, NEW_BATCH = 0.02, 0.3, 0.05, 24
ASKED = Cause(kind=TimelineKind.CHECKPOINT, actor="sweep", reason="asked for")


class Job:
    """One job with a gate before its data, whose models can be looked at."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.gate = Gate()
        self.script = Script(task=self._build, gate=self.gate)

    def group(self, lr: float) -> Group:
        return Group(self.script, samples=TOTAL, batch={"global_size": BATCH}, optimizer={"lr": lr})

    def _build(self) -> TrainingTask:
        self.models.append(model := mlp(DTYPE))
        data = Regression(NUM_SAMPLES, DTYPE, self.script)
        return TrainingTask(model=model, train_data=data, loss=mse, optimizer=adam)


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr)


def plain(sizes: list[int], rates: list[float]) -> tuple[nn.Module, list[float]]:
    model = mlp(DTYPE)
    optimizer, losses = adam(model.parameters(), LR), list[float]()
    for lr, batch in zip(rates, reference.batches_of(Regression(NUM_SAMPLES, DTYPE), sizes, 0), strict=True):
        optimizer.param_groups[0]["lr"] = lr
        losses += reference.train(model, optimizer, iter([batch]), mse).losses
    return model, losses


def stored(group: Group) -> list[CheckpointInfo]:
    return list_checkpoints(open_storage(group.checkpoints))


def hold(job: Job, group: Group, workers: list[str], rounds: int) -> None:
    """Let it train so many rounds, and wait in the next."""
    job.gate.close_at(rounds * BATCH)
    group.await_all(lambda s: s.round == rounds, workers)


def test_the_state_of_another_job_is_saved_when_asked_for_and_taken_over_in_place() -> None:
    giver, taker = Job(), Job()
    with giver.group(LR) as donor, taker.group(OTHER_LR) as group:
        [source] = donor.start(1)
        giver.gate.close_at(5 * BATCH)
        first = donor.train([source])
        hold(giver, donor, [source], 5)
        donor.agree([source], generation=first.generation, saves=1, cause=ASKED)
        giver.gate.close_at(7 * BATCH)
        donor.await_all(lambda s: bool(stored(donor)), [source])  # a save may be passed over for a later one
        giver.gate.open()
        donor.await_done([source])
        asked = next(info for info in stored(donor) if info.saves == 1)
        assert (asked.round, asked.cursor, asked.reason, asked.is_final) == (6, 6 * BATCH, "asked for", False)

        workers = group.start(2)
        taker.gate.close_at(2 * BATCH)
        plan = group.train(workers)
        hold(taker, group, workers, 2)
        state = Donor(job_id="other", path=asked.path, cursor=asked.cursor, url=donor.checkpoints)
        new_lr = replace(plan.lr, lr=NEW_LR)
        group.agree(workers, source=state, lineage=2, lr=new_lr, global_batch=NEW_BATCH, settings=1)
        taker.gate.open()
        group.await_done(workers)
        records = [record for key, record in sorted(group.records.items()) if key[0] == 2]
        own = stored(group)

    sizes = [BATCH] * 6 + [NEW_BATCH] * 5
    scale = (NEW_BATCH / BATCH) ** 0.5
    model, losses = plain(sizes, [LR] * 6 + [NEW_LR * scale] * 5)
    assert [record.round for record in records] == [7, 8, 9, 10, 11]
    assert [record.cursor for record in records] == list(accumulate(sizes))[6:]
    assert [record.values["loss"] for record in records] == pytest.approx(losses[6:], rel=1e-10, abs=1e-10)
    assert all(reference.distance(model, mine) < 1e-10 for mine in taker.models)
    taken = own[0]
    assert (taken.lineage, taken.round, taken.settings) == (2, 6, 1)  # safe before a single step of its own
    assert "taken over" in taken.reason


def test_a_state_that_cannot_be_had_leaves_the_job_with_its_own() -> None:
    taker = Job()
    with taker.group(LR) as group:
        workers = group.start(2)
        taker.gate.close_at(3 * BATCH)
        plan = group.train(workers)
        hold(taker, group, workers, 3)
        gone = Donor(job_id="other", path="0001-0001-000000001-00001", cursor=8, url=str(group.root / "gone"))
        group.agree(workers, source=gone, lineage=2, settings=1)
        taker.gate.open()
        statuses = group.await_break(workers)
        stop = statuses[workers[0]].stop
        assert stop is not None
        assert stop.cause is StopCause.DONOR
        assert "job other cannot be taken over" in (stop.failure.message if stop.failure else "")
        assert {(s.phase, s.lineage, s.round) for s in statuses.values()} == {(Phase.STOPPED, 1, 4)}
        group.train(workers, lineage=1, lr=plan.lr)
        group.await_done(workers)
        losses = group.losses()
    _, expected = plain([BATCH] * (TOTAL // BATCH), [LR] * (TOTAL // BATCH))
    assert losses == pytest.approx(expected, rel=1e-10, abs=1e-10)

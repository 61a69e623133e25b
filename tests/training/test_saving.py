"""Checkpoints made and taken by workers, and the goals that end or hold a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import TERM, Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.checkpoints import damage, list_checkpoints
from workers.local_storage import LocalStorage
from workers.plan import Cause, CheckpointSource, FreshSource, Goal, MemberSource, TimelineKind
from workers.status import Phase
from workers.task import TrainingTask
from workers.training import trainer
from workers.training.loading import load_checkpoint

BATCH, SAMPLES, STEPS, LR = 12, 40, 10, 0.02
DTYPE = torch.float64


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr)


class Job:
    """A job whose models can be looked at, with a gate before its data."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.script = Script(task=self._build, gate=Gate())

    @property
    def gate(self) -> Gate:
        assert self.script.gate is not None
        return self.script.gate

    def group(self, **spec: Any) -> Group:
        values = {"steps": STEPS, "batch": {"global_size": BATCH}, "optimizer": {"lr": LR}, "eval_every_steps": 4}
        return Group(self.script, **{**values, **spec})

    def _build(self) -> TrainingTask:
        self.models.append(model := mlp(DTYPE))
        return TrainingTask(
            model=model,
            train_data=Regression(SAMPLES, DTYPE, self.script),
            loss=mse,
            optimizer=adam,
            eval_data=Regression(20, DTYPE),
            evaluate=lambda model, batch: {"mse": mse(model, batch)},
        )


@pytest.fixture
def job() -> Job:
    return Job()


def plain(steps: int = STEPS) -> reference.Reference:
    model = mlp(DTYPE)
    data = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, steps)
    return reference.train(model, adam(model.parameters(), LR), data, mse)


def test_a_checkpoint_restores_at_another_number_of_workers(job: Job) -> None:
    with job.group(checkpoint={"every_steps": 4, "keep": 5, "metric": "eval.mse", "mode": "min"}) as group:
        first = group.start(2)
        root = LocalStorage(group.root / "checkpoints")
        job.gate.close_at(4 * BATCH)
        group.train(first)
        group.await_all(lambda s: bool(list_checkpoints(root)), first)  # a save may be passed over for a later one
        job.gate.close_at(8 * BATCH)
        group.await_all(lambda s: len(list_checkpoints(root)) == 2, first)
        job.gate.open()
        group.await_done(first)
        infos = list_checkpoints(root)
        assert [(i.round, i.step, i.cursor, i.is_final) for i in infos] == [
            (4, 4, 48, False),
            (8, 8, 96, False),
            (10, 10, 120, True),
        ]
        assert [i.reason for i in infos] == ["every 4 steps", "every 4 steps", "all samples are trained on"]
        assert [i.metric for i in infos] == [group.records[1, r].values["eval.mse"] for r in (4, 8, 10)]
        assert all(damage(root, i.path) is None for i in infos)
        assert all(i.held_s > 0 for i in infos)
        later = group.start(3)
        source = CheckpointSource(infos[0].path, infos[0].step, infos[0].cursor)
        group.train(later, source=source, lineage=2)
        group.await_done(later)
        again = [record.values["loss"] for key, record in sorted(group.records.items()) if key[0] == 2]
        rounds = [key[1] for key in sorted(group.records) if key[0] == 2]
    expected = plain()
    assert rounds == [5, 6, 7, 8, 9, 10]
    assert again == pytest.approx(expected.losses[4:], abs=1e-10)
    assert all(reference.distance(expected.model, m) < 1e-10 for m in job.models)


def test_save_and_stop_by_agreement_saves_the_last_commit(job: Job) -> None:
    with job.group() as group:
        workers = group.start(2)
        job.gate.close_at(3 * BATCH)
        plan = group.train(workers)
        job.gate.await_waiting(2)
        cause = Cause(kind=TimelineKind.PAUSE, actor="user", reason="saving before the pause")
        group.agree(workers, goal=Goal.SAVE_AND_STOP, generation=plan.generation, cause=cause)
        job.gate.open()
        statuses = group.await_all(lambda s: s.phase is Phase.SAVED, workers)
        saved = [c for s in statuses.values() for c in s.checkpoints]
        loaded = load_checkpoint(f"{group.root}/checkpoints/{saved[0].path}")
    assert [(c.round, c.reason) for c in saved] == [(4, cause.reason)]  # by one of them
    assert (loaded.round, loaded.cursor) == (4, 4 * BATCH)
    expected = plain(4)
    assert all(torch.allclose(v, loaded.model[k], atol=1e-10) for k, v in expected.model.state_dict().items())


def test_save_and_stop_at_once_is_done_by_the_source_alone(job: Job) -> None:
    with job.group() as group:
        workers = group.start(2)
        job.gate.close_at(3 * BATCH)
        group.train(workers)
        job.gate.await_waiting(2)
        assert group.plan is not None
        group.sessions[workers[0]].halt(TERM, group.plan.id)
        group.sessions[workers[1]].halt(TERM, group.plan.id)
        job.gate.open()
        group.await_all(lambda s: s.phase is Phase.STOPPED, workers)
        group.train([workers[1]], goal=Goal.SAVE_AND_STOP, source=MemberSource(workers[1], 3))
        group.await_all(lambda s: s.phase is Phase.SAVED, [workers[1]])
        assert [c.round for c in list_checkpoints(LocalStorage(group.root / "checkpoints"))] == [3]


def test_a_worker_that_is_stopped_saves_if_asked(job: Job) -> None:
    with job.group() as group:
        (worker,) = group.start(1)
        job.gate.close_at(3 * BATCH)
        group.train([worker])
        job.gate.await_waiting(1)
        session = group.sessions[worker]
        session.stop(TERM, save=True)
        job.gate.open()
        assert session.wait_ended(20)
        assert [c.round for c in list_checkpoints(LocalStorage(group.root / "checkpoints"))] == [3]


def test_init_from_takes_the_weights_or_everything(job: Job) -> None:
    with job.group(checkpoint={"every_steps": 4, "keep": 5}) as group:
        workers = group.start(1)
        group.train(workers)
        group.await_done(workers)
        first = list_checkpoints(LocalStorage(group.root / "checkpoints"))[0]  # a slow disk skips the first of all
        place = f"{group.root}/checkpoints/{first.path}"
        weights = load_checkpoint(place).model
        everything = _started_from(place, "all")
        only_weights = _started_from(place, "weights")
    assert first.step in (4, 8)
    assert everything == pytest.approx(plain().losses[first.step :], abs=1e-10)
    assert len(only_weights) == STEPS
    model = mlp(DTYPE)
    model.load_state_dict(weights)
    x, y = next(reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, 1))
    assert only_weights[0] == pytest.approx(mse(model, [x, y]).item(), abs=1e-10)


def _started_from(place: str, state: str) -> list[float]:
    with Job().group(init_from={"job": "other", "state": state}) as group:
        group.init_from = place
        workers = group.start(2)
        group.train(workers, source=FreshSource())
        group.await_done(workers)
        return group.losses()


def test_storage_that_fails_costs_no_step_is_told_and_the_final_checkpoint_waits_for_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "FINAL_RETRIES_S", (0.01,) * 3000)
    with job.group(checkpoint={"every_steps": 2, "keep": 2}) as group:
        workers = group.start(2)
        root = group.root / "checkpoints"
        root.write_text("a file where the folder should be")
        group.train(workers)
        told = group.await_all(lambda s: any(f.step == STEPS for f in s.failed_saves), workers[:1])[workers[0]]
        assert told.phase is not Phase.DONE
        assert "cannot be written" in told.failed_saves[-1].message
        root.unlink()
        group.await_done(workers)
        losses = group.losses()
        [info] = list_checkpoints(LocalStorage(root))
    assert (info.step, info.is_final) == (STEPS, True)
    assert losses == pytest.approx(plain().losses, abs=1e-10)


def test_a_checkpoint_of_another_model_is_refused(job: Job) -> None:
    with job.group() as group:
        workers = group.start(1)
        group.train(workers)
        group.await_done(workers)
        path = list_checkpoints(LocalStorage(group.root / "checkpoints"))[0].path

        def wider() -> TrainingTask:
            return TrainingTask(model=nn.Linear(5, 2).to(DTYPE), train_data=Regression(SAMPLES, DTYPE), loss=mse)

        job.script.task = wider
        later = group.start(1)
        group.train(later, source=CheckpointSource(path, 10, 10 * BATCH), lineage=2)
        status = group.await_all(lambda s: s.phase is Phase.STOPPED, later)[later[0]]
    assert status.stop is not None
    assert status.stop.failure is not None
    assert status.stop.failure.type == "CheckpointError"
    assert "does not fit the model" in status.stop.failure.message

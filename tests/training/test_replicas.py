"""One bit that one rank holds otherwise than the others: found, told, and never what the job goes on with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.fake_store import FakeStore
from tests.training.group import Group
from tests.training.rank import await_true
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from tests.training.test_world import in_threads, joined
from workers.checkpoints import CheckpointInfo, list_checkpoints
from workers.errors import ReplicaError
from workers.plan import CheckpointSource
from workers.status import Phase, WorkerStatus
from workers.storage_urls import open_storage
from workers.task import TrainingTask
from workers.training import replicas
from workers.training.loading import load_checkpoint
from workers.training.replicas import odd_ranks
from workers.training.world import WorldError

BATCH, SAMPLES, STEPS, LR = 12, 40, 12, 0.05
DTYPE = torch.float64
NAME = "2.bias"


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def flip(model: nn.Module) -> None:
    """The lowest bit of one number, in memory that nobody was told of."""
    model.get_parameter(NAME).data.view(torch.int64)[3] ^= 1


@dataclass
class Faulty:
    """A job of a worker a model, in the order in which they start; ``victim``'s memory fails in the round ``at``,
    by a ``fault``."""

    victim: int
    at: int
    gate: Gate | None = None
    fault: Callable[[nn.Module], None] = flip
    model: Callable[[], nn.Module] = field(default=lambda: mlp(DTYPE))
    models: list[nn.Module] = field(default_factory=list)
    num_calls: dict[int, int] = field(default_factory=dict)

    def task(self) -> TrainingTask:
        self.models.append(self.model())
        script = Script(gate=self.gate)
        return TrainingTask(
            model=self.models[-1], train_data=Regression(SAMPLES, DTYPE, script), loss=self.loss, optimizer=sgd
        )

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        number = next(i for i, mine in enumerate(self.models) if mine is model)
        self.num_calls[number] = self.num_calls.get(number, 0) + 1
        value = mse(model, batch)
        if (number, self.num_calls[number]) == (self.victim, self.at):
            self.fault(model)
        return value

    def job(self, num_workers: int, **spec: Any) -> tuple[Group, list[str]]:
        """Workers start one by one, so that it is known whose model is whose."""
        whole = {"steps": STEPS, "batch": {"global_size": BATCH, "micro_size": BATCH}, "optimizer": {"lr": LR}, **spec}
        group = Group(Script(task=self.task, gate=self.gate), **whole)
        return group, [group.start(1)[0] for _ in range(num_workers)]


def plain() -> reference.Reference:
    model = mlp(DTYPE)
    data = reference.batches(Regression(SAMPLES, DTYPE), BATCH, 0, STEPS)
    return reference.train(model, sgd(model.parameters(), LR), data, mse)


def saved(group: Group) -> list[CheckpointInfo]:
    return list_checkpoints(open_storage(group.checkpoints))


def message(status: WorkerStatus) -> str:
    assert status.phase is Phase.FAILED
    assert status.failure is not None
    assert status.failure.type == "ReplicaError"
    return status.failure.message


def assert_as_undisturbed(group: Group) -> None:
    expected = plain()
    assert group.losses() == pytest.approx(expected.losses, abs=1e-10)
    last = saved(group)[-1]
    assert last.is_final
    weights = load_checkpoint(f"{group.checkpoints}/{last.path}").model
    assert all(torch.allclose(value, weights[k], atol=1e-10) for k, value in expected.model.state_dict().items())


@pytest.mark.parametrize(
    ("every", "every_steps", "at", "found", "rounds"),
    [
        (4, 100, 6, 8, []),  # by the count of rounds
        (200, 3, 8, 9, [3, 6]),  # before the checkpoint that would hold it
        (200, 100, 10, STEPS, []),  # before the final one
    ],
)
@pytest.mark.parametrize("victim", [0, 2])
def test_of_three_the_one_that_is_wrong_is_named_and_the_others_go_on(
    victim: int, every: int, every_steps: int, at: int, found: int, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", every)
    group, workers = Faulty(victim, at).job(3, checkpoint={"every_steps": every_steps})
    with group:
        group.train(workers)
        statuses = group.await_break(workers)
        told = message(statuses[workers[victim]])
        assert told.startswith(f"rank {victim} (worker {workers[victim]}) holds another state than most ranks after")
        assert f"after round {found}, in 1 of 6 tensors, the first of them {NAME!r}; it leaves; where" in told
        others = [worker_id for worker_id in workers if worker_id != workers[victim]]
        assert {(statuses[i].phase, statuses[i].round) for i in others} == {(Phase.STOPPED, found)}
        await_true(lambda: [info.round for info in saved(group)] == rounds, f"checkpoints of {rounds}")
        group.train(others)
        group.await_done(others)
        assert_as_undisturbed(group)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_what_is_frozen_on_some_ranks_only_is_held_alike_all_the_same(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", 2)
    seen: set[bool] = set()

    def frozen_by_samples(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        weight, is_trained = model.get_parameter("0.weight"), bool(batch[0].sum() > 0)
        weight.requires_grad_(is_trained)
        seen.add(is_trained)
        return mse(model, batch)

    data = Regression(SAMPLES, DTYPE)
    task = lambda: TrainingTask(model=mlp(DTYPE), train_data=data, loss=frozen_by_samples, optimizer=sgd)  # noqa: E731
    batch = {"global_size": BATCH, "micro_size": BATCH // num_workers}
    with Group(Script(task=task), steps=STEPS, batch=batch, optimizer={"lr": LR}) as group:
        workers = group.start(num_workers)
        group.train(workers)
        group.await_done(workers)
    assert seen == {True, False}


@pytest.mark.parametrize(("every", "at", "found"), [(4, 7, 8), (200, 8, 9)])
def test_where_nobody_knows_which_is_right_both_leave_and_the_last_checkpoint_holds(
    every: int, at: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", every)
    group, workers = Faulty(1, at).job(2, checkpoint={"every_steps": 3})
    with group:
        group.train(workers)
        statuses = group.await_break(workers)
        for status in statuses.values():
            told = message(status)
            assert told.startswith(f"rank 0 (worker {workers[0]}), rank 1 (worker {workers[1]}) hold different states")
            assert f"after round {found}, in 1 of 6 tensors, the first of them {NAME!r}, and none is that" in told
        await_true(lambda: [info.round for info in saved(group)] == [3, 6], "two checkpoints")
        last = saved(group)[-1]
        fresh = group.start(2)
        group.train(fresh, lineage=2, source=CheckpointSource(last.path, last.step, last.cursor))
        group.await_done(fresh)
        group.records = {(1, r): record for (k, r), record in sorted(group.records.items()) if k == 2 or r <= 6}
        assert_as_undisturbed(group)


def test_a_wrong_state_is_found_before_a_newcomer_takes_it() -> None:
    gate = Gate()
    group, workers = Faulty(0, 2, gate).job(4)
    with group:
        gate.close_at(3 * BATCH)
        group.train(workers[:3])
        gate.await_waiting(3)
        group.agree(workers)
        gate.open()
        statuses = group.await_all(lambda s: s.phase is Phase.FAILED, workers[:1])
        assert "rank 0 (worker 1.0) holds another state than most ranks after round 4" in message(statuses["1.0"])
        group.halt(workers[1:])
        statuses = group.await_all(lambda s: s.phase is Phase.STOPPED, workers[1:])
        assert [statuses[i].round for i in workers[1:]] == [4, 4, None]
        group.train(workers[1:])
        group.await_done(workers[1:])
        assert_as_undisturbed(group)


def test_a_wrong_state_is_found_before_one_goes_on_with_it_alone() -> None:
    gate = Gate()
    group, workers = Faulty(0, 2, gate).job(3)
    with group:
        gate.close_at(3 * BATCH)
        group.train(workers)
        gate.await_waiting(3)
        group.agree(workers[:1])
        gate.open()
        statuses = group.await_break(workers)
        assert "rank 0 (worker 1.0) holds another state than most ranks after round 4" in message(statuses["1.0"])
        group.train(workers[1:])
        group.await_done(workers[1:])
        assert_as_undisturbed(group)


@pytest.mark.parametrize("victim", [0, 1])
def test_members_of_a_new_group_that_only_say_that_they_hold_the_same_are_found(victim: int) -> None:
    gate = Gate()
    group, workers = Faulty(victim, 2, gate).job(4)
    with group:
        gate.close_at(3 * BATCH)
        group.train(workers[:3])
        gate.await_waiting(3)
        group.halt(workers[:3], gate)
        group.train(workers)  # the source may be the one that is wrong
        statuses = group.await_break(workers)
        assert "most ranks after round 3" in message(statuses[workers[victim]])
        others = [worker_id for worker_id in workers if worker_id != workers[victim]]
        assert [statuses[i].round for i in others] == [3, 3, None]
        group.train(others)
        group.await_done(others)
        assert_as_undisturbed(group)


def test_who_loses_the_others_while_the_tensor_is_looked_for_is_wrong_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, both = FakeStore(), threading.Barrier(2)

    def work(rank: int) -> None:
        world = joined(store, rank, 2, "1/1")
        if rank == 1:
            both.wait()
            world.destroy()
            return
        monkeypatch.setattr(replicas, "_told", lambda plan, odd, round, where, has_majority: f"{odd}: {where}")
        both.wait()
        try:
            state = TrainedState()
            replicas.compare(state, world, None, {0: [0, 5], 1: [0, 6]})  # type: ignore[arg-type]  # what it uses
        finally:
            world.destroy()

    failed, left = in_threads(2, work)
    assert left is None
    assert str(failed) == "[0, 1]: in a tensor that was not found"


def test_nobody_leaves_before_all_know_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noted:
        """Ranks that differ in the second of six parameters."""

        rank, device, calls = 0, torch.device("cpu"), []

        def gather(self, values: list[int]) -> list[list[int]]:
            self.calls.append("gather")
            return [values, [values[0], values[1] + 1, *values[2:]]]

        def agree(self, values: list[float]) -> list[float]:
            self.calls.append("agree")
            raise WorldError("a slower one has left")

    monkeypatch.setattr(replicas, "_told", lambda plan, odd, round, where, has_majority: where)
    with pytest.raises(ReplicaError, match=r"1 of 6 tensors, the first of them '0\.bias'"):
        replicas.compare(TrainedState(), Noted(), None, {0: [0, 5], 1: [0, 6]})  # type: ignore[arg-type]  # what it uses
    assert Noted.calls == ["gather", "agree"]


class TrainedState:
    """The part of a state that is compared."""

    def __init__(self) -> None:
        self.model, self.round, self.buffers = mlp(), 4, NoBuffers()
        self.trained = dict(self.model.named_parameters())


class NoBuffers:
    tracked: tuple[str, ...] = ()


def test_what_may_differ_between_ranks_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", 1)
    faulty = Faulty(1, 3)

    class Private(nn.Sequential):
        """Each rank keeps to itself what it notes in a buffer and in a parameter that is not trained."""

        def __init__(self) -> None:
            super().__init__(*mlp(DTYPE))
            self.register_buffer("noted", torch.zeros(()))
            self.frozen = nn.Parameter(torch.zeros((), dtype=DTYPE), requires_grad=False)
            self.unused = nn.Parameter(torch.tensor(float("nan"), dtype=DTYPE))
            faulty.models.append(self)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        model.noted.data.add_(1.0 + faulty.models.index(model))  # type: ignore[operator]  # a tensor
        model.frozen.data.add_(1.0 + faulty.models.index(model))  # type: ignore[operator]  # a tensor
        return mse(model, batch)

    def task() -> TrainingTask:
        return TrainingTask(model=Private(), train_data=Regression(SAMPLES, DTYPE), loss=loss, optimizer=sgd)

    with Group(Script(task=task), steps=STEPS, batch={"global_size": BATCH}, optimizer={"lr": LR}) as group:
        workers = group.start(3)
        group.train(workers)
        group.await_done(workers)
        assert group.losses() == pytest.approx(plain().losses, abs=1e-10)
    assert len({float(model.frozen) for model in faulty.models}) == 3  # type: ignore[arg-type]  # a tensor


def test_one_rank_alone_has_nobody_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> torch.Tensor:
        raise AssertionError("hashed for nobody")

    monkeypatch.setattr(replicas, "hash_of", refuse)
    monkeypatch.setattr(replicas, "EVERY_ROUNDS", 1)
    group, workers = Faulty(0, STEPS + 1).job(1, checkpoint={"every_steps": 3})
    with group:
        group.train(workers)
        group.await_done(workers)
        assert_as_undisturbed(group)


@pytest.mark.parametrize(
    ("hashes", "odd"),
    [
        ([7, 7, 7], []),
        ([7, 8], [0, 1]),
        ([8, 7, 7], [0]),
        ([7, 8, 9], [0, 1, 2]),
        ([7, 7, 8, 8], [0, 1, 2, 3]),
        ([7, 7, 8, 9], [0, 1, 2, 3]),
        ([8, 7, 7, 9, 7], [0, 3]),
        ([7], []),
    ],
)
def test_right_is_what_more_than_half_hold(hashes: list[int], odd: list[int]) -> None:
    assert odd_ranks(dict(enumerate(hashes))) == odd

"""Steps of each worker's own and one of all now and then: as in a plain loop, whoever comes, goes or fails."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from tests.training.test_compression import assert_alike, members
from workers.checkpoints import list_checkpoints
from workers.errors import Reason
from workers.local_storage import LocalStorage
from workers.plan import CheckpointSource, Exchange, split_batch
from workers.status import Phase, RoundRecord, StopCause
from workers.task import TrainingTask
from workers.training.outer import Outer

NUM_SAMPLES, STEPS, BATCH, LR = 50, 30, 12, 0.02
H, OUTER_LR, MOMENTUM, CLIP = 4, 0.7, 0.9, 0.8
PARTS = (7.0, 4.0, 1.0)
ALIKE = (1.0, 1.0)


def local(steps: int = H, quantise: str = "none") -> Exchange:
    options = (("outer_lr", OUTER_LR), ("outer_momentum", MOMENTUM), ("quantise", quantise), ("steps", steps))
    return Exchange(scheme="local_steps", options=options)


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr)


class Job:
    """As many workers as wanted, whose samples pass a gate; ``models`` are theirs, by their start."""

    def __init__(self, loss: Any = mse, length: Any = None, collate: Any = None, **spec: Any) -> None:
        self.gate, self.models = Gate(), list[nn.Module]()
        script = Script(gate=self.gate)

        def task() -> TrainingTask:
            self.models.append(model := mlp(torch.float64))
            data = Regression(NUM_SAMPLES, torch.float64, script)
            code = {"loss": loss, "optimizer": adam, "length": length, "collate": collate}
            return TrainingTask(model=model, train_data=data, **code)

        script.task = task
        spec = {"batch": {"global_size": BATCH, "micro_size": 3}, "optimizer": {"lr": LR, "clip_norm": CLIP}, **spec}
        self.group = Group(script, **{"samples": STEPS * BATCH, **spec})

    def run(self, parts: Sequence[float] = ALIKE, exchange: Exchange | None = None) -> list[RoundRecord]:
        """All of it by workers of these weights; what they tell of their rounds."""
        with self.group as group:
            workers = group.start(len(parts))
            group.train(members(workers, parts), exchange=exchange or local())
            group.await_done(workers)
            return self.records()

    def records(self) -> list[RoundRecord]:
        """By round."""
        return [record for _, record in sorted(self.group.records.items())]


def plain(
    parts: Sequence[float], round_sizes: Sequence[int], models: list[nn.Module] | None = None
) -> tuple[nn.Module, list[float]]:
    """The same in one process: replicas that step by themselves, and an outer SGD; the losses of rounds."""
    replicas = [mlp(torch.float64) for _ in parts]
    inner = [adam(model.parameters(), LR) for model in replicas]
    whole = mlp(torch.float64)
    outer = torch.optim.SGD(whole.parameters(), lr=OUTER_LR, momentum=MOMENTUM, nesterov=True)
    data = reference.batches(Regression(NUM_SAMPLES, torch.float64), BATCH, 0, STEPS)
    sizes, losses = split_batch(BATCH, parts), []
    for num_steps in round_sizes:
        for model in replicas:
            model.load_state_dict(whole.state_dict())
        total = 0.0
        for _ in range(num_steps):
            x, y = next(data)
            for model, optimizer, xs, ys in zip(replicas, inner, x.split(sizes), y.split(sizes), strict=True):
                optimizer.zero_grad()
                loss = mse(model, [xs, ys])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                total += loss.item() * len(xs)
        for number, parameter in enumerate(whole.parameters()):
            there = [[*model.parameters()][number].detach() for model in replicas]
            changed = [(parameter.detach() - p) * size / BATCH for p, size in zip(there, sizes, strict=True)]
            parameter.grad = torch.stack(changed).sum(dim=0)
        outer.step()
        losses.append(total / num_steps / BATCH)
    return whole, losses


def losses_of(records: Sequence[RoundRecord]) -> list[float]:
    return [record.values["loss"] for record in records]


def assert_as_in_one_process(job: Job, records: Sequence[RoundRecord], parts: Sequence[float]) -> None:
    expected, expected_losses = plain(parts, [4] * 7 + [2])
    assert reference.distance(job.models[0], expected) < 1e-12
    assert losses_of(records) == pytest.approx(expected_losses, rel=1e-12)


@pytest.mark.parametrize("parts", [(1.0,), ALIKE, PARTS, (5.0, 1.0, 4.0, 2.0), (3.0, 1.0, 4.0, 2.0, 2.0)], ids=len)
def test_unequal_parts_come_out_as_in_one_process(parts: tuple[float, ...]) -> None:
    job = Job()
    records = job.run(parts)
    assert [record.samples for record in records] == [48] * 7 + [24]
    assert [record.values["round_steps"] for record in records] == [4] * 7 + [2]
    assert_alike(job.models)
    assert_as_in_one_process(job, records, parts)


@pytest.mark.parametrize("quantise", ["bf16", "int8", "int4"])
def test_fewer_bytes_keep_ranks_alike_and_train(quantise: str) -> None:
    job = Job()
    records = job.run(PARTS, local(quantise=quantise))
    losses, ratios = losses_of(records), [record.values["wire_ratio"] for record in records]
    expected, expected_losses = plain(PARTS, [4] * 7 + [2])
    assert_alike(job.models)
    assert max(ratios) > H / 2  # of steps, as the tail is most of what so small a model sends
    assert 0.0 < reference.distance(job.models[0], expected) < 0.1
    assert losses[-1] < 1.3 * expected_losses[-1] < 0.5 * losses[0]


def test_a_round_ends_at_each_line_at_which_all_look_up() -> None:
    job = Job(checkpoint={"every_steps": 10})
    with job.group as group:
        workers = group.start(2)
        group.train(members(workers, ALIKE), exchange=local(), until=6 * BATCH - 1)
        group.await_all(lambda s: s.phase is Phase.HELD, workers)
        group.agree(members(workers, ALIKE), generation=1, exchange=local())
        group.await_done(workers)
        records = job.records()
    assert [record.cursor // BATCH for record in records] == [4, 6, 10, 14, 18, 20, 24, 28, 30]


class Flawed:
    """A loss whose gradient is not finite, or that raises, in one call; the first counts as one."""

    def __init__(self, call: int, error: bool) -> None:
        self._call, self._error, self._num_calls = call, error, 0

    def __call__(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        self._num_calls += 1
        if self._num_calls != self._call:
            return mse(model, batch)
        if self._error:
            raise ValueError("odd")
        return mse(model, batch) + (0.0 * next(model.parameters()).sum()).sqrt()


@pytest.mark.parametrize("length", [None, lambda sample: 1 + int(sample[0][0] > 0)], ids=["in order", "by length"])
def test_a_round_with_a_gradient_that_is_not_finite_is_passed_over_by_all(length: Any) -> None:
    # Calls are the ranks' as they come: two of each batch by either, so that the 20th is in the second round.
    job = Job(Flawed(20, error=False), length)
    assert [record.round for record in job.run() if record.is_skipped] == [2]
    assert_alike(job.models)
    assert all(torch.isfinite(p).all() for p in job.models[0].parameters())


def test_a_job_that_never_took_a_step_is_no_success() -> None:
    job = Job(lambda model, batch: mse(model, batch) * torch.inf)
    with job.group as group:
        workers = group.start(2)
        group.train(members(workers, ALIKE), exchange=local())
        statuses = group.await_all(lambda s: s.phase in (Phase.FAILED, Phase.DONE), workers)
    failures = [status.failure for status in statuses.values()]
    assert all(failure is not None and failure.reason is Reason.DIVERGED for failure in failures)


def test_a_round_that_an_error_broke_is_taken_back_whole_and_redone() -> None:
    job = Job(loss=Flawed(22, error=True))
    with job.group as group:
        workers = group.start(2)
        group.train(members(workers, ALIKE), exchange=local())
        statuses = group.await_break(workers)
        causes = {status.stop.cause for status in statuses.values() if status.stop is not None}
        committed = {status.round for status in statuses.values()}
        group.train(members(workers, ALIKE), exchange=local())
        group.await_done(workers)
        records = job.records()
    assert StopCause.USER in causes
    assert committed == {1}
    assert_as_in_one_process(job, records, ALIKE)


def test_a_newcomer_takes_over_the_outer_momentum() -> None:
    job = Job()
    with job.group as group:
        workers = group.start(2)
        job.gate.close_at(8 * BATCH)
        group.train(workers[:1], exchange=local())
        group.await_all(lambda s: s.round == 2, workers[:1])
        job.gate.await_waiting(1)
        group.agree(members(workers, ALIKE), exchange=local())
        job.gate.open()
        group.await_done(workers)
    assert_alike(job.models)


def test_a_checkpoint_has_the_outer_momentum() -> None:
    job = Job(checkpoint={"every_steps": 16})
    with job.group as group:
        workers = group.start(1)
        group.train(workers, exchange=local())
        group.await_done(workers)
        stored = list_checkpoints(LocalStorage(group.root / "checkpoints"))
        [path] = [info.path for info in stored if info.cursor == 16 * BATCH]
        later = group.start(1)
        source = CheckpointSource(path, 16, 16 * BATCH)
        group.train(later, source=source, lineage=2, exchange=local())
        group.await_done(later)
    assert reference.distance(job.models[0], mlp(torch.float64)) > 0.1
    assert reference.distance(job.models[0], job.models[1]) == 0.0


@pytest.mark.parametrize("fails_at", [0, 7])
def test_memory_that_runs_out_in_a_later_step_takes_no_buffer_back_for_good(fails_at: int) -> None:
    num_calls, models = [0], list[nn.Module]()

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        num_calls[0] += 1
        if num_calls[0] == fails_at:
            raise MemoryError
        model.get_buffer("seen").add_(float(len(batch[0])))
        return mse(model, batch)

    job = Job(loss, batch={"global_size": BATCH, "micro_size": "auto"})
    make = job.group.script.task
    assert make is not None

    def task() -> TrainingTask:
        made = make()
        made.model.register_buffer("seen", torch.zeros(1))
        models.append(made.model)
        return made

    job.group.script.task = task
    with job.group as group:
        workers = group.start(1)
        group.train(workers, exchange=local())
        if fails_at:
            statuses = group.await_all(lambda s: s.phase is Phase.STOPPED, workers)
            assert statuses[workers[0]].stop.cause is StopCause.MEMORY  # type: ignore[union-attr]  # it has stopped
            group.train(workers, exchange=local())
        group.await_done(workers)
    assert models[0].get_buffer("seen").item() == STEPS * BATCH


def run_out_once(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, call: int) -> None:
    """Memory runs out in this call of a method, counted from 1."""
    unbroken, num_calls = getattr(owner, method), [0]

    def tight(*arguments: Any, **named: Any) -> Any:
        num_calls[0] += 1
        if num_calls[0] == call:
            raise MemoryError
        return unbroken(*arguments, **named)

    monkeypatch.setattr(owner, method, tight)


BETWEEN_PASSES = [
    (Outer, "begin", 2, "a copy of the parameters and of what the optimizer holds"),
    (torch.optim.AdamW, "step", 7, "the optimizer's step"),
    (Outer, "differences", 2, "what the steps changed"),
]


@pytest.mark.parametrize(("owner", "method", "call", "what"), BETWEEN_PASSES)
def test_memory_that_runs_out_between_passes_leaves_the_round_with_smaller_ones(
    owner: type, method: str, call: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_out_once(monkeypatch, owner, method, call)
    job = Job(batch={"global_size": BATCH, "micro_size": "auto"})
    with job.group as group:
        workers = group.start(1)
        group.train(workers, exchange=local())
        [status] = group.await_all(lambda s: s.phase is Phase.STOPPED, workers).values()
        assert status.stop is not None
        assert (status.stop.cause, status.round) == (StopCause.MEMORY, 1)
        assert status.stop.failure is not None
        assert status.stop.failure.message.endswith(f", for {what}; the round is tried again with 6")
        group.train(workers, exchange=local())
        group.await_done(workers)
        records = job.records()
    assert_as_in_one_process(job, records, (1.0,))


@pytest.mark.parametrize(("owner", "method", "call", "what"), BETWEEN_PASSES)
def test_where_there_are_no_smaller_passes_it_is_told_as_a_lack_of_memory(
    owner: type, method: str, call: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_out_once(monkeypatch, owner, method, call)
    job = Job()
    with job.group as group:
        workers = group.start(1)
        group.train(workers, exchange=local())
        [status] = group.await_all(lambda s: s.phase is Phase.FAILED, workers).values()
    assert status.failure is not None
    assert status.failure.reason is Reason.OUT_OF_MEMORY
    assert f"none left for {what}: MemoryError" in status.failure.message
    assert "give workers more memory" in status.failure.message


def test_a_short_batch_by_length_is_dealt_to_a_rank_whose_part_is_none() -> None:
    job = Job(length=lambda sample: 1 + int(abs(float(sample[0][1])) * 60), samples=29 * BATCH + 2)
    job.run((3.0, 1.0))
    assert_alike(job.models)


def test_no_two_steps_of_a_round_draw_the_same_numbers() -> None:
    read, computed = list[float](), list[float]()

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        computed.append(torch.rand(()).item())
        return mse(model, batch)

    def collate(samples: list[Any]) -> list[torch.Tensor]:
        read.append(torch.rand(()).item())
        return [torch.stack(column) for column in zip(*samples, strict=True)]

    Job(loss, collate=collate).run((1.0,))
    assert len(computed) == len({*computed}) == 4 * STEPS
    assert len(read) == len({*read}) == 4 * STEPS


def test_what_is_staged_is_taken_back_with_what_the_optimizer_holds() -> None:
    model = mlp(torch.float64)
    optimizer = adam(model.parameters(), LR)
    outer = Outer(model, optimizer)
    data = reference.batches(Regression(NUM_SAMPLES, torch.float64), BATCH, 0, 3)

    def step() -> None:
        optimizer.zero_grad()
        mse(model, next(data)).backward()
        optimizer.step()

    step()
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    outer.begin([*model.parameters()])
    optimizer.param_groups[0]["lr"] = 7.0
    step()
    outer.rollback()
    after = [model.state_dict(), optimizer.state_dict()]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    outer.begin([*model.parameters()])
    outer.rollback()
    torch.testing.assert_close([model.state_dict(), optimizer.state_dict()], before, rtol=0, atol=0)

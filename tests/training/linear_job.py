"""A job whose loss is linear in its parameters, so that the plain loop tells the sum of all gradients at any time.

Of a checkpoint, weights less ``LR`` times what was left out of gradients so far are the plain loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Script, reset
from workers.checkpoints import list_checkpoints
from workers.plan import CheckpointSource, Exchange, Goal, Member
from workers.status import CheckpointInfo, Phase, WorkerStatus
from workers.storage_urls import join, open_storage
from workers.task import TrainingTask
from workers.training.exchange.reals import as_real
from workers.training.loading import load_checkpoint

BATCH, LR, NUM_SAMPLES = 12, 0.1, 50
SHAPES = {"wide": (40, 25), "flat": (300,), "square": (24, 24), "complex": (60, 2)}
"""In real numbers."""


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            values = torch.empty(shape)
            self.register_parameter(name, nn.Parameter(torch.view_as_complex(values) if name == "complex" else values))
        self.register_buffer("noted", torch.zeros(7))
        reset(self, 3)

    def forward(self, x_BN: torch.Tensor) -> torch.Tensor:
        return x_BN @ torch.cat([as_real(parameter).view(-1) for parameter in self.parameters()])


class Vectors:
    """Samples that are the gradients themselves."""

    def __init__(self, gate: Gate | None = None) -> None:
        num_values = sum(torch.Size(shape).numel() for shape in SHAPES.values())
        self._x = torch.randn(NUM_SAMPLES, num_values, generator=torch.Generator().manual_seed(7))
        self._gate = gate

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        if self._gate is not None:
            self._gate.pass_through()
        return (self._x[index],)


def mean(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    value: torch.Tensor = model(batch[0]).mean()
    return value


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def plain(num_rounds: int, begin: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    model = Linear()
    model.load_state_dict(begin or {}, strict=False)
    data = reference.batches(Vectors(), BATCH, 0, num_rounds)
    return reference.train(model, sgd(model.parameters(), LR), data, mean).model.state_dict()


class Job:
    """A job at a gate; ``rounds`` are those that its workers have done when they wait there."""

    def __init__(
        self, num_rounds: int, loss: Callable[[nn.Module, list[torch.Tensor]], torch.Tensor] = mean, **spec: Any
    ) -> None:
        self.gate, self.rounds, self.workers = Gate(), 0, list[str]()
        self.models = list[nn.Module]()

        def task() -> TrainingTask:
            self.models.append(model := Linear())
            return TrainingTask(model=model, train_data=Vectors(self.gate), loss=loss, optimizer=sgd)

        whole = {"batch": {"global_size": BATCH, "micro_size": BATCH}, "optimizer": {"lr": LR}, **spec}
        whole["checkpoint"] = {"keep": 50, **spec.get("checkpoint", {})}
        self.group = Group(Script(task=task, gate=self.gate), samples=num_rounds * BATCH, **whole)

    def begin(self, num_workers: int, exchange: Exchange, **changes: Any) -> None:
        self.workers = self.group.start(num_workers)
        self.gate.close_at(self.rounds * BATCH)
        self.group.train(self.workers, exchange=exchange, **changes)

    def go_on(self, num_rounds: int) -> None:
        self.rounds += num_rounds
        self.gate.close_at(self.rounds * BATCH)
        plan = self.group.plan
        assert plan is not None

        def has_come(status: WorkerStatus) -> bool:
            at = (self.rounds, plan.generation, plan.id)
            return status.plan is not None and at == (status.round, status.generation, status.plan.id)

        # Only then is it in force on those that it leaves out, too: before that nobody may offer another.
        self.group.await_all(has_come, self.workers)

    def resize(self, workers: list[str], exchange: Exchange, **changes: Any) -> None:
        """From the next boundary on."""
        self.workers = workers
        weights = (7.0, 4.0, 1.0, 2.0)
        members = [Member(worker_id=i, rank=rank, weight=weights[rank]) for rank, i in enumerate(workers)]
        self.group.agree(members, exchange=exchange, **changes)

    def within(self, **changes: Any) -> None:
        """Another plan for the same group."""
        plan = self.group.plan
        assert plan is not None
        values = {"exchange": plan.exchange, "generation": plan.generation, "saves": plan.saves, **changes}
        self.group.agree([*plan.members], **values)

    def save_and_stop(self) -> CheckpointInfo:
        self.within(goal=Goal.SAVE_AND_STOP)
        self.rounds += 1
        self.gate.close_at(self.rounds * BATCH)
        self.group.await_all(lambda s: s.phase is Phase.SAVED, self.workers)
        return self.stored()[-1]

    def stored(self) -> list[CheckpointInfo]:
        return list_checkpoints(open_storage(self.group.checkpoints))

    def restore(self, info: CheckpointInfo, num_workers: int, exchange: Exchange) -> None:
        self.rounds = info.round
        self.gate.num_read = info.cursor
        source, plan = CheckpointSource(info.path, info.step, info.cursor), self.group.plan
        assert plan is not None
        self.begin(num_workers, exchange, lineage=plan.lineage + 1, source=source)

    def finish(self) -> None:
        self.gate.open()
        self.group.await_done(self.workers)

    def lacks(self, info: CheckpointInfo, begin: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
        """How far a checkpoint is from the plain loop's when all is paid that was left out, by parameter."""
        loaded = load_checkpoint(join(self.group.checkpoints, info.path))
        expected = plain(info.round, begin)
        return {
            name: as_real(loaded.model[name] - expected[name]) - LR * loaded.residual.get(name, torch.zeros(1))
            for name in SHAPES
        }

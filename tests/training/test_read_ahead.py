"""A job whose samples are read ahead comes out, bit for bit, as one whose training threads read them.

Each rank is a process, since what is random is drawn from generators of the whole process.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.group import ProcessGroup
from tests.training.loading import Settled, wait_for_processes
from tests.training.rank import FileGate, await_true
from tests.training.tasks import mse, reset
from workers.task import TrainingTask
from workers.training import setup
from workers.training.loader_choice import THREAD, Way
from workers.training.loader_fleet import Fleet

NUM_SAMPLES, STEPS = 40, 9
BATCH, LATER_BATCH, MICRO = 12, 9, 2
NUM_LATER_PASSES = 4  # of each of three workers in two rounds
WAYS = {"inline": Way(), "thread": THREAD, "processes": Way(num_processes=2)}


class Noisy:
    """Samples that carry their index and, where they are random, what is drawn; leaves the number of its process."""

    def __init__(self, folder: Path, *, is_random: bool) -> None:
        self._folder, self._is_random = folder, is_random

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        (self._folder / f"reader-{os.getpid()}").touch()
        drawn = [random.random(), np.random.rand(), *torch.rand(2)] if self._is_random else [0.1, 0.2, 0.3, 0.4]
        return torch.tensor([index / NUM_SAMPLES, *drawn], dtype=torch.float64), torch.ones(2, dtype=torch.float64)


class Drawing(torch.optim.SGD):
    """Draws at random where it steps, as those do that round so."""

    def step(self, closure: Any = None) -> Any:
        torch.rand(1)
        return super().step(closure)


def length_at(data: Noisy, index: int) -> int:
    return 1 + index % 5


def length(sample: tuple[torch.Tensor, torch.Tensor]) -> int:
    return 1 + round(float(sample[0][0]) * NUM_SAMPLES) % 5


def build(config: Mapping[str, Any]) -> TrainingTask:
    """A net with dropout, whose data are read as the environment says; its loss passes a gate."""
    folder, worker_id = Path(config["folder"]), config["worker"]
    way, kind = WAYS[os.environ["READ_BY"]], os.environ["DATA"]
    setup.LoaderChoice = lambda num_cpus: Settled(way)  # type: ignore[misc,assignment]  # this process is the rank's own
    Fleet.keep = wait_for_processes(Fleet.keep)  # type: ignore[method-assign]  # the same
    model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 2)).to(torch.float64)
    reset(model, 3)
    gate, num_passes = FileGate(folder, worker_id), [0]

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        gate.pass_through(num_passes[0])
        num_passes[0] += 1
        return mse(model, batch)

    return TrainingTask(
        model=model,
        train_data=Noisy(folder, is_random=kind == "random"),
        loss=loss,
        optimizer=lambda parameters, lr: (Drawing if kind == "drawing" else torch.optim.SGD)(
            parameters, lr=lr, momentum=0.9
        ),
        length=length if kind == "lengths" else None,
        length_at=length_at if kind == "lengths by index" else None,
    )


def job(read_by: str, data: str, **batch: Any) -> ProcessGroup:
    group = ProcessGroup(
        entrypoint=f"{__name__}:build",
        steps=STEPS,
        batch={"global_size": BATCH, **batch},
        optimizer={"lr": 0.005},
        checkpoint={"every_steps": 4},
    )
    group.env = {"READ_BY": read_by, "DATA": data}
    return group


def while_members_and_batch_change(read_by: str, data: str) -> tuple[list[float], int]:
    """Losses of one worker, then three with a smaller batch, then two; and in how many processes samples were read."""
    with job(read_by, data, micro_size=MICRO) as group:
        first, *others = workers = group.start(3)
        gates = [group.gate(worker_id) for worker_id in workers]
        gates[0].close(2 * BATCH // MICRO)
        for gate in gates[1:]:
            gate.close(NUM_LATER_PASSES)
        group.train([first])
        await_true(gates[0].waiting.exists, "one worker in its third round")
        group.agree(workers, global_batch=LATER_BATCH)
        gates[0].close(3 * BATCH // MICRO + NUM_LATER_PASSES)
        # All are held in that round, so that all count the plan in it, whatever else the machine does.
        await_true(lambda: all(gate.waiting.exists() for gate in gates[1:]), "three in their third")
        group.agree(others, global_batch=LATER_BATCH)
        for gate in gates:
            gate.open()
        group.await_done(others)
        records = [record for _, record in sorted(group.records.items())]
        assert [int(r.values["workers"]) for r in records[:7]] == [1, 1, 1, 3, 3, 3, 2]
        return [r.values["loss"] for r in records], len(list(group.root.glob("reader-*")))


def by_length(read_by: str, data: str) -> tuple[list[float], int]:
    """The same of two workers that know the lengths of samples."""
    with job(read_by, data, micro_size=MICRO) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)
        return group.losses(), len(list(group.root.glob("reader-*")))


@pytest.mark.parametrize(
    ("train", "data", "read_by", "num_readers"),
    [
        (while_members_and_batch_change, "random", "processes", 3 + 1),
        (while_members_and_batch_change, "plain", "thread", 3),
        (by_length, "lengths", "processes", 2 + 1),
        (by_length, "lengths by index", "processes", 2 * 2),
    ],
)
def test_what_is_read_ahead_changes_nothing_of_what_is_trained(
    train: Callable[[str, str], tuple[list[float], int]], data: str, read_by: str, num_readers: int
) -> None:
    losses, least_readers = train(read_by, data)
    expected, num_inline = train("inline", data)
    assert losses == expected
    assert len(set(losses)) == len(losses) >= STEPS
    assert num_inline <= 3
    assert least_readers >= num_readers


def test_an_optimizer_that_draws_numbers_is_not_taken_for_random_data() -> None:
    with job("thread", "drawing", micro_size=MICRO) as group:
        workers = group.start(1)
        group.train(workers)
        (status,) = group.await_done(workers).values()
        assert status.loader_changes == ()

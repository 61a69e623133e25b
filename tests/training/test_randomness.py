"""What is drawn at random depends on the seed, the step and the place in the batch, and on nothing else.

Each rank is a process: threads would share the generators that the user's code draws from.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.group import ProcessGroup
from tests.training.rank import FileGate, await_true
from tests.training.tasks import mse, reset
from workers.checkpoints import list_checkpoints
from workers.plan import CheckpointSource
from workers.status import StopCause
from workers.storage_urls import open_storage
from workers.task import TrainingTask

BATCH, STEPS, NUM_SAMPLES = 12, 8, 40
SAVED = 3
SPEC: Mapping[str, Any] = {
    "entrypoint": f"{__name__}:build",
    "steps": STEPS,
    "batch": {"global_size": BATCH},
    "optimizer": {"lr": 0.005},
    "checkpoint": {"every_steps": SAVED},
}


class Alike:
    """Samples that differ in nothing but what is drawn for them, so that their order cannot show."""

    def __init__(self, folder: Path, worker_id: str) -> None:
        self._gate = FileGate(folder, worker_id)
        self._num_read = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._gate.pass_through(self._num_read)
        self._num_read += 1
        noise = torch.tensor([random.random(), np.random.rand(), *torch.rand(3)], dtype=torch.float64)
        return 1.0 + noise, torch.ones(2, dtype=torch.float64)


def build(config: Mapping[str, Any]) -> TrainingTask:
    """A net with dropout that leaves its masks in a file, and raises once where a file says so."""
    folder, worker_id = Path(config["folder"]), config["worker"]
    masks, raises = folder / f"masks-{worker_id}", folder / f"raises-{worker_id}"
    model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 2)).to(torch.float64)
    reset(model, 3)

    def note(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        with masks.open("a") as file:
            file.write("".join(map(str, (output == 0).int().flatten().tolist())) + "\n")
        if raises.exists() and len(masks.read_text().splitlines()) == int(raises.read_text()):
            raises.unlink()
            raise ValueError("once")

    model[1].register_forward_hook(note)
    return TrainingTask(
        model=model,
        train_data=Alike(folder, worker_id),
        loss=mse,
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    )


class Langevin(torch.optim.SGD):
    """Adds noise to what it trains, as those do that sample."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        with torch.no_grad():
            for parameter in chain.from_iterable(group["params"] for group in self.param_groups):
                parameter.add_(torch.randn_like(parameter) + random.random() + np.random.rand(), alpha=1e-3)


def build_langevin(config: Mapping[str, Any]) -> TrainingTask:
    return replace(build(config), optimizer=lambda parameters, lr: Langevin(parameters, lr=lr))


@dataclass(frozen=True)
class Run:
    """The losses of all rounds, and the masks of each rank's forward passes."""

    losses: list[float]
    masks: list[list[str]]


def run(num_workers: int = 2, **spec: Any) -> Run:
    with ProcessGroup(**{**SPEC, **spec}) as group:
        workers = group.start(num_workers)
        group.train(workers)
        group.await_done(workers)
        return Run(group.losses(), masks_of(group, workers))


def masks_of(group: ProcessGroup, workers: Sequence[str]) -> list[list[str]]:
    return [(group.root / f"masks-{worker_id}").read_text().splitlines() for worker_id in workers]


@pytest.fixture(scope="module")
def undisturbed() -> Run:
    return run()


def test_two_runs_of_one_seed_are_the_same_bit_for_bit_and_one_of_another_seed_is_not(undisturbed: Run) -> None:
    assert len(undisturbed.losses) == STEPS
    assert run() == undisturbed
    other = run(seed=1)
    assert not set(other.losses) & set(undisturbed.losses)
    assert not set(chain(*other.masks)) & set(chain(*undisturbed.masks))


def test_each_rank_draws_a_mask_of_its_own_at_each_step(undisturbed: Run) -> None:
    masks = list(chain(*undisturbed.masks))
    assert len(set(masks)) == len(masks) == 2 * STEPS


def test_an_optimizer_that_draws_numbers_draws_the_same_on_all_ranks() -> None:
    # Ranks are compared before each checkpoint, and one that differed would leave.
    sampled = run(3, entrypoint=f"{__name__}:build_langevin", checkpoint={"every_steps": 1})
    assert len(set(sampled.losses)) == STEPS


def test_a_run_that_goes_on_from_a_checkpoint_draws_as_if_it_had_never_stopped(undisturbed: Run) -> None:
    with ProcessGroup(**SPEC) as group:
        lost = group.start(2)
        gate, storage = group.gate(lost[1]), open_storage(group.checkpoints)
        gate.close(SAVED * BATCH // 2)
        group.train(lost)
        await_true(lambda: bool(list_checkpoints(storage)), "a checkpoint")
        for worker_id in lost:
            group.forget(worker_id)
        [saved] = list_checkpoints(storage)
        workers = group.start(2)
        group.train(workers, lineage=2, source=CheckpointSource(saved.path, saved.step, saved.cursor))
        group.await_done(workers)
        assert masks_of(group, workers) == [masks[SAVED:] for masks in undisturbed.masks]
        losses = [record.values["loss"] for key, record in sorted(group.records.items()) if key[0] == 2]
    assert losses == undisturbed.losses[SAVED:]


def test_a_round_that_is_tried_again_draws_the_same(undisturbed: Run) -> None:
    at = 4
    with ProcessGroup(**SPEC) as group:
        workers = group.start(2)
        (group.root / f"raises-{workers[1]}").write_text(str(at))
        group.train(workers)
        statuses = group.await_break(workers)
        assert StopCause.USER in {s.stop.cause for s in statuses.values() if s.stop}
        group.train(workers)
        group.await_done(workers)
        losses, [kept, tried] = group.losses(), masks_of(group, workers)
    assert losses == undisturbed.losses
    assert tried[at - 1] == tried[at]
    assert tried[:at] + tried[at + 1 :] == undisturbed.masks[1]
    assert kept[-1] == undisturbed.masks[0][-1]


def test_one_sample_a_forward_pass_is_drawn_for_alike_on_any_number_of_workers() -> None:
    one_by_one = {"batch": {"global_size": BATCH, "micro_size": 1}}
    with ProcessGroup(**{**SPEC, **one_by_one}) as group:
        first, *others = workers = group.start(3)
        gates = [group.gate(first), group.gate(others[0])]
        gates[0].close(2 * BATCH)
        gates[1].close(2 * BATCH // 3)
        group.train([first])
        await_true(gates[0].waiting.exists, "one worker in its third round")
        group.agree(workers)
        gates[0].open()
        await_true(gates[1].waiting.exists, "three in their third")
        group.agree(others)
        gates[1].open()
        group.await_done(others)
        losses = group.losses()
        sizes = [int(record.values["workers"]) for _, record in sorted(group.records.items())]
    assert [size for size, _ in groupby(sizes)] == [1, 3, 2]
    assert losses == pytest.approx(run(1, **one_by_one).losses, rel=1e-10, abs=1e-10)

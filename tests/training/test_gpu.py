"""Training on a GPU, by one worker or by several with a part of it: as on the CPU, within what the format allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Regression, Script, mlp, mse
from tests.training.test_compression import Job, assert_alike, plain
from tests.training.test_noise import adam, assert_noise_is_as_by_brute_force, sgd
from workers.checkpoints import list_checkpoints
from workers.errors import OutOfMemoryError
from workers.local_storage import LocalStorage
from workers.plan import CheckpointSource, Exchange, Format, Precision
from workers.spec_parts import Resources
from workers.task import TrainingTask
from workers.training.exchange import buckets
from workers.training.memory import limit_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

STEPS, BATCH, LR = 20, 12, 0.05
NUM_GPUS = 1


@dataclass(frozen=True)
class Trained:
    """``losses`` of every step, ``again`` those after the restore of a checkpoint; ``models`` as they ended."""

    losses: list[float]
    again: list[float]
    models: list[nn.Module]
    devices: set[str]


def trained(num_gpus: int, format: Format) -> Trained:
    models: list[nn.Module] = []

    def build() -> TrainingTask:
        models.append(model := mlp())
        data = Regression(40, torch.float32)
        return TrainingTask(model=model, train_data=data, loss=mse, optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr))

    spec = {"steps": STEPS, "batch": {"global_size": BATCH}, "optimizer": {"lr": LR}, "resources": {"gpus": num_gpus}}
    checkpoint = {"every_steps": 1, "keep": STEPS}
    with Group(Script(task=build), checkpoint=checkpoint, **spec) as group:
        first = group.start(1)
        saved = LocalStorage(group.root / "checkpoints")
        group.train(first, precision=Precision(format=format))
        statuses = group.await_done(first)
        devices = {str(s.build.device) for s in statuses.values() if s.build is not None}
        # Of a save a step some are passed over while another is written; which are there does not matter.
        half = [info for info in list_checkpoints(saved) if not info.is_final][-1]
        later = group.start(1)
        source = CheckpointSource(half.path, half.step, half.cursor)
        group.train(later, source=source, lineage=2, precision=Precision(format=format))
        group.await_done(later)
        of: dict[int, list[float]] = {1: [], 2: []}
        for key, record in sorted(group.records.items()):
            of[key[0]].append(record.values["loss"])
    return Trained(of[1], of[2], models, devices)


@pytest.mark.parametrize(("format", "tolerance"), [(Format.FP32, 1e-4), (Format.BF16, 0.05), (Format.FP16, 0.01)])
def test_twenty_steps_on_cuda_and_a_restore_equal_those_on_the_cpu(format: Format, tolerance: float) -> None:
    on_cpu, on_gpu = trained(0, Format.FP32), trained(NUM_GPUS, format)
    assert all("cuda" in device for device in on_gpu.devices)
    assert all(p.dtype == torch.float32 for model in on_gpu.models for p in model.parameters())
    assert on_gpu.losses == pytest.approx(on_cpu.losses, rel=tolerance, abs=tolerance)
    assert on_gpu.again
    assert on_gpu.again == pytest.approx(on_gpu.losses[-len(on_gpu.again) :], rel=tolerance, abs=tolerance)
    if format is Format.FP32:
        assert all(reference.distance(on_cpu.models[0], model.cpu()) < tolerance for model in on_gpu.models)
    else:
        assert on_gpu.losses != on_cpu.losses  # it really ran in that format


@pytest.mark.parametrize("scheme", ["none", "int8", "powersgd"])
def test_parts_of_a_gpu_exchange_resize_and_come_out_near_the_plain_loop(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MIB", 64)  # several, of which the first leave while backward runs
    job, exchange = Job(resources={"gpus": 0.25}), Exchange(scheme=scheme)
    with job.group as group:
        workers = group.start(3)
        statuses = job.resized(workers, exchange)
        devices = {str(s.build.device) for s in statuses.values() if s.build is not None}
        losses = group.losses()
    expected = plain()
    assert all("cuda" in device for device in devices)
    assert_alike(job.models)
    assert sum(losses[-5:]) < 1.4 * sum(expected.losses[-5:])
    if scheme == "none":
        assert reference.distance(job.models[0], expected.model) < 1e-4


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_the_noise_scale_of_a_gpu_is_that_of_the_gradients_of_single_samples(
    optimizer: Callable[..., torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.training.group.num_gpus", 0.25)
    assert_noise_is_as_by_brute_force(optimizer, None, monkeypatch)


def test_a_part_of_a_gpu_comes_with_its_part_of_the_memory() -> None:
    device = torch.device("cuda", 0)
    _, total_bytes = torch.accelerator.get_memory_info(device)
    assert limit_of(Resources(gpus=1), device) is None
    assert limit_of(Resources(gpus=0.5, memory_bytes=2**30), device) == 2**30
    half = limit_of(Resources(gpus=0.5), device)
    assert half is not None
    assert 0.4 * total_bytes < half < 0.5 * total_bytes
    with pytest.raises(OutOfMemoryError, match=r"resources.gpus=0.001 is \d+ bytes of this GPU"):
        limit_of(Resources.model_construct(gpus=0.001, memory_bytes=None), device)

"""Workers on a GPU and on CPUs in one job: they come out near the plain loop, and alike, whoever comes and goes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.fake_store import FakeStore
from tests.training.group import Group
from tests.training.test_compression import BATCH, BOUNDS, MOST_LOSS, STEPS, Job, members, plain, told
from tests.training.test_world import seat
from workers.assignment import Assignment
from workers.exchange_options import filled
from workers.plan import Exchange, Format, Precision
from workers.training.exchange import buckets, compressed
from workers.training.exchange.codecs import Codec
from workers.training.exchange.registry import CODECS
from workers.training.exchange.residual import Residual
from workers.training.world import World

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
BESIDE = {"gpus": 0.25, "cpus_instead": 1}
EXCHANGES = [
    *(Exchange(scheme=scheme) for scheme in ("none", "bf16", "fp16", "int8", "int4", "two_four")),
    Exchange(scheme="topk", options=(("fraction", 0.1), ("quantise", "int8"))),
    Exchange(scheme="powersgd", options=(("rank", 1),)),
    Exchange(scheme="none", options=(("across", "int4"),)),
]


class MixedGroup(Group):
    """Every second of its workers is on a CPU."""

    def assignment(self, worker_id: str) -> Assignment:
        assignment = super().assignment(worker_id)
        return assignment if int(worker_id.partition(".")[2]) % 2 == 0 else assignment.as_placed({})


def assert_near(models: list[nn.Module]) -> None:
    """A GPU and a CPU round differently."""
    assert all(reference.distance(models[0], other) < 1e-5 for other in models[1:])


class MixedJob(Job):
    group_class = MixedGroup


@pytest.mark.parametrize("exchange", [pytest.param(each, id=told(each), marks=ON_GPU) for each in EXCHANGES])
def test_a_gpu_and_cpus_exchange_resize_and_come_out_near_the_plain_loop(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MIB", 64)  # several, of which the first leave while backward runs
    monkeypatch.setattr(compressed, "MOST_VALUES", 32)  # several pieces, of which an accelerator would make one
    job = MixedJob(resources=BESIDE)
    with job.group as group:
        workers = group.start(3)
        statuses = job.resized(workers, exchange)
        devices = [s.build.device.partition(":")[0] for i in workers if (s := statuses[i]).build is not None]
        losses = group.losses()
    expected = plain()
    assert devices == ["cuda", "cpu", "cuda"]
    assert_near(job.models)
    assert sum(losses[-5:]) < MOST_LOSS.get(exchange.scheme, 1.4) * sum(expected.losses[-5:])
    if exchange.scheme in BOUNDS or exchange == Exchange(scheme="none"):
        assert reference.distance(job.models[0], expected.model) < 2 * BOUNDS.get(exchange.scheme, 5e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_gpu_and_a_cpu_take_steps_of_their_own() -> None:
    exchange = Exchange(scheme="local_steps", options=filled("local_steps", {"steps": 5}))
    job = MixedJob(resources=BESIDE)
    with job.group as group:
        workers = group.start(2)
        group.train(members(workers), exchange=exchange)
        group.await_done(workers)
        losses = group.losses()
    assert_near(job.models)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("format", [pytest.param(each, marks=ON_GPU) for each in (Format.BF16, Format.FP16)])
def test_a_gpu_and_a_cpu_compute_in_lower_formats_together(format: Format) -> None:
    job = MixedJob(resources=BESIDE)
    with job.group as group:
        workers = group.start(2)
        group.train(members(workers), precision=Precision(format=format))
        group.await_done(workers)
        losses = group.losses()
    expected = plain()
    assert len(losses) == STEPS
    assert_near(job.models)
    assert losses == pytest.approx(expected.losses, rel=0.1, abs=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_unequal_parts_of_a_gpu_and_a_cpu_sum_to_the_gradient_of_the_whole_batch() -> None:
    job = MixedJob(momentum=0.0, samples=BATCH, optimizer={"lr": 1.0}, resources=BESIDE)
    with job.group as group:
        workers = group.start(2)
        group.train([replace(m, weight=w) for m, w in zip(members(workers), (11.0, 1.0), strict=True)])
        group.await_done(workers)
    assert reference.distance(job.models[0], plain(momentum=0.0, steps=1, lr=1.0).model) < 1e-6


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("num_values", [1, 1000, 3 * 2**17 + 5])
def test_ranks_on_accelerators_send_those_on_the_host_pieces_of_their_size(name: str, num_values: int) -> None:
    def sent(device: str, is_mixed: bool) -> list[tuple[int, ...]]:
        codec: Codec = CODECS[name]
        world = World(seat(0, 3, "mixed"), FakeStore())
        world.is_mixed = is_mixed
        flat = torch.zeros(num_values, device=device)
        bucket = compressed.Compressed(codec, Residual())._bucket(0, flat, num_values, world)
        return [tuple(piece.parts_out.bytes_RB.shape) for piece in bucket.pieces]

    assert sent("meta", True) == sent("cpu", True) == sent("cpu", False)
    assert math.prod(sent("meta", False)[0]) >= math.prod(sent("cpu", False)[0])

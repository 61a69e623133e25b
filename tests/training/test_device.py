"""The device module, on the CPU that every machine has; what needs a GPU runs where there is one."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from workers.advisors.precision import choose_precision
from workers.errors import JobError
from workers.plan import Format
from workers.spec_parts import Resources
from workers.training.device import (
    backend_for,
    best_in_turns,
    gpu_utilisation,
    measure_formats,
    memory_bytes,
    pick_device,
)

CPU = torch.device("cpu")
HAS_ACCELERATOR = torch.accelerator.is_available()


def test_without_gpus_asked_for_the_device_is_the_cpu() -> None:
    assert pick_device(0) == CPU
    assert backend_for(CPU, Resources()) == "gloo"


@pytest.mark.skipif(HAS_ACCELERATOR, reason="there is an accelerator on this machine")
def test_a_gpu_that_is_not_there_is_an_error_and_not_a_silent_cpu() -> None:
    with pytest.raises(JobError, match=r"resources.gpus=1 but torch .* sees no accelerator"):
        pick_device(1)


def test_every_format_is_measured_and_no_random_number_is_drawn() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    seconds = measure_formats(CPU)
    assert set(seconds) == {"fp32", "bf16", "fp16"}
    assert all(value > 0 for value in seconds.values())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_busy_moment_makes_no_format_alone_seem_slow() -> None:
    passes = count()

    def once() -> float:
        return 0.0009 if next(passes) < 60 else 0.0001

    assert best_in_turns({"fp32": once, "bf16": once}) == {"fp32": 0.0001, "bf16": 0.0001}


def test_a_pass_that_is_held_up_for_as_long_as_all_may_take_is_not_what_its_format_takes() -> None:
    held_up = count()
    passes = {"fp32": lambda: 0.0001, "bf16": lambda: 0.0001 if next(held_up) else 30.0}
    assert best_in_turns(passes) == {"fp32": 0.0001, "bf16": 0.0001}


def test_memory_is_what_is_resident() -> None:
    before = memory_bytes(CPU)
    held = torch.ones(25_000_000)
    grown = memory_bytes(CPU) - before
    assert 90_000_000 < grown < 130_000_000
    assert held.sum() == 25_000_000


def test_a_cpu_has_no_gpu_utilisation() -> None:
    assert gpu_utilisation(CPU) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_gpu_is_picked_measured_and_watched() -> None:
    device = pick_device(1)
    assert (device.type, backend_for(device, Resources(gpus=1))) == ("cuda", "nccl")
    for asked in (Resources(gpus=0.5), Resources(gpus=1, cpus_instead=2)):
        assert backend_for(device, asked) == "gloo"
    assert choose_precision("auto", [measure_formats(device)]).format in (Format.BF16, Format.FP16)
    assert memory_bytes(device) > 0
    utilisation = gpu_utilisation(device)
    assert utilisation is None or 0 <= utilisation <= 1

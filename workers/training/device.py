"""The one place that decides about devices: which, what it can do, how full and how busy it is."""

from __future__ import annotations

import functools
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed
import torch.nn.functional as F

from workers.errors import JobError
from workers.plan import Format
from workers.spec_parts import Resources

TORCH_DTYPES = {Format.FP32: torch.float32, Format.BF16: torch.bfloat16, Format.FP16: torch.float16}

# The fixed layer of the table, as (samples, width). On a CPU it is as small as the layers that are
# usually trained there, so that the casts around a product weigh what they weigh in practice: a CPU
# with bf16 units does a bare product 7 times as fast as fp32 and a step of a small model 0.6 times.
_CPU_LAYER = (128, 128)
_ACCELERATOR_LAYER = (2048, 2048)
_SECONDS_A_FORMAT = 0.04
_LEAST_REPEATS, _MAX_REPEATS = 5, 60


def pick_device(num_gpus: float) -> torch.device:
    """The device of this process: its accelerator where the job asked for one, else the CPU.

    ``num_gpus`` is ``resources.gpus`` of the job's spec; Ray shows a process only the devices it gave.

    Raises JobError where one was asked for and torch sees none.
    """
    if num_gpus <= 0:
        return torch.device("cpu")
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise JobError(
            f"resources.gpus={num_gpus:g} but torch {torch.__version__} sees no accelerator on this node; "
            "install a torch built for it, or set resources.gpus to 0"
        )
    return torch.device(device.type, torch.accelerator.current_device_index())


def backend_for(device: torch.device, resources: Resources) -> str:
    """The name of the torch.distributed backend of a job's workers, of which ``device`` is one.

    nccl for whole CUDA devices. Workers with a part of one may share it, which NCCL refuses ("Duplicate GPU
    detected"), and some may have CPUs instead, so theirs is gloo, as on the CPU.
    """
    is_alike = resources.cpus_instead is None and not 0 < resources.gpus < 1
    return torch.distributed.get_default_backend_for_device(device) if is_alike else "gloo"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work queued so far; nothing to wait for on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@functools.cache
def measure_formats(device: torch.device) -> Mapping[str, float]:
    """Seconds of one fixed linear layer, forward and backward under autocast, by number format.

    The best of a few repeats within a bounded time (150 ms in all, after one pass to warm up), once in a process;
    formats that the device cannot compute in, or has no memory for, are left out. Draws no random numbers.
    """
    passes = {}
    for format, dtype in TORCH_DTYPES.items():
        try:
            once = _timed_pass(device, dtype)
            once()  # the first pass sets libraries up, which took half a second where a pass took 0.1 ms
        except (RuntimeError, TypeError) as error:
            if format is Format.FP32 and not isinstance(error, torch.OutOfMemoryError):
                raise
        else:
            passes[format.value] = once
    return best_in_turns(passes)


def _timed_pass(device: torch.device, dtype: torch.dtype) -> Callable[[], float]:
    samples, width = _CPU_LAYER if device.type == "cpu" else _ACCELERATOR_LAYER
    input_BD = torch.linspace(-1.0, 1.0, samples * width, device=device).reshape(samples, width).requires_grad_()
    weight_DD = torch.linspace(-0.1, 0.1, width * width, device=device).reshape(width, width).requires_grad_()
    grad_BD = torch.ones(samples, width, device=device, dtype=dtype)

    def once() -> float:
        synchronize(device)
        start_s = time.perf_counter()
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            output_BD = F.linear(input_BD, weight_DD)
        torch.autograd.grad(output_BD, (input_BD, weight_DD), grad_BD)
        synchronize(device)
        return time.perf_counter() - start_s

    return once


def best_in_turns(passes: Mapping[str, Callable[[], float]]) -> Mapping[str, float]:
    """The least seconds of each. They take turns: one after the other, a busy moment would slow one of them alone.

    A few turns are taken in any case: where one pass was held up for as long as all may take, only another tells.
    """
    seconds = {name: [once()] for name, once in passes.items()}
    bound_s = _SECONDS_A_FORMAT * len(passes)
    for n in range(1, _MAX_REPEATS):
        if n >= _LEAST_REPEATS and sum(map(sum, seconds.values())) >= bound_s:
            break
        for name, once in passes.items():
            seconds[name].append(once())
    return {name: min(found) for name, found in seconds.items()}


def memory_bytes(device: torch.device) -> int:
    """What this process holds on the device: resident memory on a CPU, else what torch has reserved there."""
    if device.type != "cpu":
        return int(torch.accelerator.memory_reserved(device))
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB, but on macOS in bytes
    return peak if sys.platform == "darwin" else peak * 1024


def gpu_utilisation(device: torch.device) -> float | None:
    """The share of the last sample period in which the GPU was busy, from 0 to 1, told by NVML.

    None where there is no GPU or its driver does not tell (a part of a shared one, for example).
    """
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100.0
    except Exception:  # NVML, its binding and torch's wrapper each raise errors of their own
        return None

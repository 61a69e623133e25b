"""The memory limit of a worker (``resources.memory_bytes``), and recognising that it was reached."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

from workers.errors import JobError, OutOfMemoryError, described
from workers.spec_parts import Resources
from workers.training.device import memory_bytes as used_bytes

# How allocators that do not raise a class of their own say it: torch on the CPU, oneDNN, thread stacks, C++.
_TOLD_AS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "could not create a memory object",
    "can't start new thread",
    "std::bad_alloc",
)


# oneDNN says so of a kernel that it does not have, too; where this process has a limit, memory is what it lacks.
_TOLD_AS_UNDER_LIMIT = ("could not create a primitive", "could not execute a primitive")


_OTHERS = re.compile(r" (Process \d+ has|Including non-PyTorch memory|Of the allocated memory).*", re.DOTALL)

CUDA_CONTEXT_BYTES = 720 * 2**20
"""What CUDA and its libraries take of a device for a process, beside its tensors: 693 MiB seen on an H100."""


def limit_of(resources: Resources, device: torch.device) -> int | None:
    """Bytes that a worker may hold on the device: what the job says, or else its part of a GPU that others share.

    None where it may have what there is. Raises OutOfMemoryError where its part holds nothing beside what CUDA takes.
    """
    if resources.memory_bytes is not None or not 0 < resources.gpus < 1:
        return resources.memory_bytes
    _, total_bytes = torch.accelerator.get_memory_info(device)
    left_bytes = round(resources.gpus * total_bytes) - CUDA_CONTEXT_BYTES
    if left_bytes <= 0:
        raise OutOfMemoryError(
            f"resources.gpus={resources.gpus:g} is {resources.gpus * total_bytes:.0f} bytes of this GPU, of which CUDA "
            f"itself takes {CUDA_CONTEXT_BYTES}; give at least {2 * CUDA_CONTEXT_BYTES / total_bytes:.2g}"
        )
    return left_bytes


def told_limit(resources: Resources) -> str:
    """What of a job's spec bounds a worker's memory, as the spec has it."""
    part = f", resources.gpus={resources.gpus:g}" if 0 < resources.gpus < 1 else ""
    return f"resources.memory_bytes={resources.memory_bytes}{part}"


def told_lack(error: BaseException) -> str:
    """What is told of an error of a lack of memory: without the other processes of a GPU, which torch lists all."""
    return _OTHERS.sub("", described(error))


def enforce_limit(memory_bytes: int, device: torch.device) -> None:
    """Make allocations fail once this process holds ``memory_bytes`` on the device. Calling again replaces the limit.

    On a GPU it bounds what torch's allocator may take there. On a CPU it bounds the process's own
    writable memory (RLIMIT_DATA), counted from what is resident now, so address space that was
    reserved but never used does not count; every later thread's stack does.

    Raises OutOfMemoryError where this process alone needs as much, JobError where the system has no such limit.
    """
    if device.type == "cpu":
        _limit_process(memory_bytes)
        return
    if device.type != "cuda":
        raise JobError(
            f"resources.memory_bytes={memory_bytes} cannot be enforced on a {device.type} device; leave it null"
        )
    _, total_bytes = torch.accelerator.get_memory_info(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / total_bytes), device)


def set_aside(num_bytes: int) -> bool:
    """Take so many bytes off this process's limit on a CPU, for a process that it starts; negative gives them back.

    False where there is no limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        return False
    resource.setrlimit(resource.RLIMIT_DATA, (soft - num_bytes, hard))
    return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, says that memory could not be had."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError | torch.OutOfMemoryError | OutOfMemoryError):
            return True
        if isinstance(seen, RuntimeError | OSError) and any(words in str(seen).lower() for words in _words()):
            return True
        seen = seen.__cause__
    return False


def _words() -> tuple[str, ...]:
    is_limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return (*_TOLD_AS, *_TOLD_AS_UNDER_LIMIT) if is_limited else _TOLD_AS


def _limit_process(memory_bytes: int) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        raise JobError(
            f"resources.memory_bytes={memory_bytes} cannot be enforced on {sys.platform}, only on Linux; leave it null"
        )
    resident_bytes = used_bytes(torch.device("cpu"))
    if memory_bytes <= resident_bytes:
        raise OutOfMemoryError(
            f"resources.memory_bytes={memory_bytes} is below the {resident_bytes} bytes that a worker uses "
            f"before it has built the task; give at least {2 * resident_bytes}"
        )
    data_kib = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data_kib * 1024 + memory_bytes - resident_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))

"""The memory limit on a CPU, in processes of their own: the limit stays with a process until it ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.group import Group, ProcessGroup
from tests.training.tasks import Regression, Script, mse
from workers.errors import EntrypointError, OutOfMemoryError, Reason
from workers.spec_parts import Resources
from workers.status import Phase
from workers.task import TrainingTask
from workers.training.memory import enforce_limit, is_out_of_memory, told_lack, told_limit

CPU = torch.device("cpu")

LIMITED = """
import threading
import numpy, torch
from workers.training.device import memory_bytes
from workers.training.memory import enforce_limit, is_out_of_memory
MB = 10**6
cpu = torch.device("cpu")
torch.set_num_threads(1)
kept = numpy.ones(20 * MB, dtype=numpy.uint8)
limit = memory_bytes(cpu) + 100 * MB
enforce_limit(limit, cpu)

def refused(allocate):
    try:
        allocate()
    except BaseException as error:
        assert is_out_of_memory(error), repr(error)
        return True
    return False

assert refused(lambda: torch.ones(35 * MB))             # 140 MB at once
assert refused(lambda: numpy.ones(140 * MB, dtype=numpy.uint8))
assert refused(lambda: bytearray(140 * MB))
small = []
assert refused(lambda: [small.append(torch.ones(MB)) for _ in range(100)])  # 4 MB each, kept
assert 15 <= len(small) <= 25, len(small)
assert memory_bytes(cpu) < limit + 10 * MB, (memory_bytes(cpu), limit)
small.clear()
again = torch.ones(15 * MB)                             # 60 MB: what was freed can be had again
model = torch.nn.Linear(100, 100); model(torch.ones(8, 100)).sum().backward()
seen = []
thread = threading.Thread(target=lambda: seen.append(refused(lambda: torch.ones(35 * MB))))
thread.start(); thread.join()
assert seen == [True]
assert is_out_of_memory(RuntimeError("could not create a primitive"))  # as oneDNN says it under this limit
del again
enforce_limit(memory_bytes(cpu) + 500 * MB, cpu)        # the newest limit counts
torch.ones(35 * MB)
print("held")
"""


def test_what_passes_the_limit_raises_and_what_does_not_still_works() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("held\n", "", 0)


def test_a_limit_below_what_a_bare_worker_uses_is_refused_naming_both() -> None:
    with pytest.raises(OutOfMemoryError, match=r"memory_bytes=67108864 is below the \d{8,} bytes that a worker uses"):
        enforce_limit(2**26, CPU)


def test_the_limit_of_a_spec_holds_for_its_worker_before_the_task_is_built() -> None:
    with ProcessGroup(steps=3, batch={"global_size": 4}, resources={"gpus": 0, "memory_bytes": 2**26}) as group:
        (worker,) = group.start(1)
        status = group.poll()[worker]
    assert status.phase is Phase.FAILED
    assert status.failure is not None
    assert status.failure.reason is Reason.OUT_OF_MEMORY
    assert "resources.memory_bytes=67108864 is below" in status.failure.message


class Heavy(nn.Linear):
    """Has no room on the device that it is brought to first."""

    num_moves = 0

    def _apply(self, fn: Any, recurse: bool = True) -> Heavy:
        self.num_moves += 1
        if self.num_moves == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        super()._apply(fn, recurse)
        return self


def test_a_model_that_its_device_has_no_room_for_is_told_as_a_lack_of_memory() -> None:
    def build() -> TrainingTask:
        return TrainingTask(model=Heavy(5, 2), train_data=Regression(8, torch.float32), loss=mse)

    with Group(Script(task=build), steps=3, batch={"global_size": 4}) as group:
        (worker,) = group.start(1)
        failure = group.poll()[worker].failure
    assert failure is not None
    assert failure.reason is Reason.OUT_OF_MEMORY
    assert failure.message.endswith("Tried to allocate 20.00 MiB.; give workers more memory, or make the model smaller")


def raised_from(cause: BaseException) -> EntrypointError:
    error = EntrypointError("wrapped")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("could not create a memory object"),
        RuntimeError("can't start new thread"),
        OSError(12, "Cannot allocate memory"),
        OutOfMemoryError("too small"),
        raised_from(MemoryError()),
        raised_from(raised_from(RuntimeError("CUDA error: out of memory"))),
    ],
)
def test_a_lack_of_memory_is_recognised(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape mismatch"),
        RuntimeError("could not create a primitive"),
        ValueError("out of memory is my dataset's name"),
        raised_from(KeyError("x")),
    ],
)
def test_other_errors_are_not_taken_for_a_lack_of_memory(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_of_a_lack_on_a_gpu_is_told_how_much_was_wanted_and_free_but_not_who_else_is_there() -> None:
    lack = "CUDA out of memory. Tried to allocate 12.00 MiB. GPU 0 has a total of 79 GiB, 70 GiB free."
    others = (
        "Process 11253 has 1 GiB memory in use. Including non-PyTorch memory, this process has 1 GiB memory in use."
    )
    assert told_lack(torch.OutOfMemoryError(f"{lack} {others}")) == f"OutOfMemoryError: {lack}"
    assert told_limit(Resources(gpus=0.25)) == "resources.memory_bytes=None, resources.gpus=0.25"
    assert told_limit(Resources(memory_bytes=2**30)) == "resources.memory_bytes=1073741824"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_on_a_gpu_the_limit_bounds_what_torch_takes_there() -> None:
    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)
    enforce_limit(2**30, device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**31, dtype=torch.uint8, device=device)
        assert torch.empty(2**28, dtype=torch.uint8, device=device).is_cuda
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)

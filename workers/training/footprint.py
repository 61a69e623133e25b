"""How much memory this worker's device still has for it, and the most that a round has held."""

from __future__ import annotations

import ctypes
import functools
import gc
import resource
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch

from workers.training.device import memory_bytes as held
from workers.training.micro import Room

__all__ = ["held", "peak_bytes", "release", "restart_peak", "room", "trim", "wait"]

SHARE = 0.5
"""Of the memory that nobody uses on a machine without a limit: other workers may come to it at the same time."""

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_NO_LIMIT = 2**62
"""Version 1 has the largest number of whole pages in place of a word."""

_RESET_PEAK = "5"  # proc(5): "resets the peak resident set size to the process's current"


class _Form(NamedTuple):
    """Where a version of control groups has its memory groups, and what their files and numbers are called."""

    mount: str
    limit: str
    used: str
    droppable: str


_VERSION_1 = _Form("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
_VERSION_2 = _Form("", "memory.max", "memory.current", "inactive_file ")


def restart_peak(device: torch.device) -> None:
    """Forget the most that was held so far, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            return


def peak_bytes(device: torch.device) -> int:
    """The most that this process held on the device since ``restart_peak``; what it holds now where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "cpu" and (peak := _kib("VmHWM:", _STATUS)) is not None:
        return peak
    return held(device)


def room(device: torch.device, cgroup: Path = _CGROUP) -> Room:
    """What this worker may hold on the device by now: its limit, or what others leave it, whichever is less."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        fraction = torch.cuda.get_per_process_memory_fraction(device)
        own = int(torch.cuda.memory_reserved(device))
        return Room(limit_bytes=min(own + free, round(fraction * total)), is_forgiving=True, is_shared=True)
    if device.type != "cpu":
        return Room()
    limited = _data_left()
    shared = [left for left in (_machine_left(), cgroup_left(cgroup)) if left is not None]
    lefts = [*([limited] if limited is not None else []), *(round(SHARE * left) for left in shared)]
    if not lefts:
        return Room()
    # What the limit on data has left is not what is free: memory that was freed is counted in it, and used again.
    is_limited = limited is not None and limited == min(lefts)
    return Room(limit_bytes=held(device) + min(lefts), is_shared=not is_limited)


def wait(device: torch.device) -> None:
    """Wait until what this thread has given the device is done."""
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()


def release(device: torch.device) -> None:
    """Give back what the allocator keeps for later, so that others can have it, and passes of another size."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        trim(device)


def trim(device: torch.device) -> None:
    """Give back to the machine what was freed and is still mapped."""
    if device.type == "cpu" and (trim := _malloc_trim()) is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's, malloc_trim(3): a limit on data counts what was freed and is still mapped. Others have none."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


def _data_left() -> int | None:
    """Bytes until the limit that ``memory.enforce_limit`` set on a CPU, None where there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    used = data_bytes()
    return None if soft == resource.RLIM_INFINITY or used is None else max(0, soft - used)


def data_bytes() -> int | None:
    """What ``RLIMIT_DATA`` counts of this process: what it may write to, touched or not; None where nobody tells."""
    return _kib("VmData:", _STATUS)


def _machine_left() -> int | None:
    return _kib("MemAvailable:", _MEMINFO)


def cgroup_left(root: Path = _CGROUP, own: Path = _OWN_GROUPS) -> int | None:
    """Bytes until the nearest limit of the groups that this process is in, as in a container; None where there is none.

    Pages of files that nobody has read lately count as free, as the kernel drops them before it kills anybody.
    """
    lefts = [left for group, form in _groups(root, own) if (left := _group_left(group, form)) is not None]
    return min(lefts, default=None)


def _groups(root: Path, own: Path) -> Iterator[tuple[Path, _Form]]:
    """Those that ``own`` names and all above them: a limit holds for whoever is below it.

    A container may be shown its own group as the root, under a path that only the machine has (cgroup_namespaces(7)).
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        told = line.split(":", 2)
        if len(told) < 3:
            continue
        _, controllers, path = told
        form = _VERSION_2 if not controllers else _VERSION_1 if "memory" in controllers.split(",") else None
        if form is None:
            continue
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(form.mount, *parts[:depth]), form


def _group_left(group: Path, form: _Form) -> int | None:
    try:
        limit, used = (group / form.limit).read_text().strip(), int((group / form.used).read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit() or int(limit) >= _NO_LIMIT:
        return None
    return max(0, int(limit) - used + (_told(form.droppable, group / "memory.stat") or 0))


def _kib(name: str, path: Path) -> int | None:
    """A line such as ``VmHWM: 12 kB`` in bytes; None where there is no such line."""
    told = _told(name, path)
    return None if told is None else told * 1024


def _told(name: str, path: Path) -> int | None:
    """The number that follows a name at the beginning of a line."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)

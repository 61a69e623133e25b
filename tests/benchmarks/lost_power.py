"""A machine that loses its power, played by its processes."""

from __future__ import annotations

import contextlib
import time

import psutil

END_S = 10.0


def lose_power(leader_pid: int) -> float:
    """SIGKILL a living process and all that descends from it; gives the moment of the first signal, monotonic seconds.

    Their sockets close at once, as after a crash of the system; a machine that is cut off would close none.
    """
    leader = psutil.Process(leader_pid)
    processes = [*leader.children(recursive=True), leader]
    at_s = time.monotonic()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=END_S)
    return at_s

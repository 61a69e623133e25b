"""Finding and ending the processes of a Ray that is ours: by its leader's session and its folder."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

START_TIME_TOLERANCE_S = 1.0
KILL_WAIT_S = 10.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for good: a process id is used again, but not with the same start time (Unix seconds)."""

    pid: int
    started_at: float

    def is_alive(self) -> bool:
        return self.find() is not None

    def find(self) -> psutil.Process | None:
        """The living process, None when it ended or is another one by now."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started_at) <= START_TIME_TOLERANCE_S
            return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def owns_session(self) -> bool:
        """Whether the session with this number, if there is one, is this process's.

        A number is not given out again while a session bears it, so only a living stranger speaks against it.
        """
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started_at) <= START_TIME_TOLERANCE_S
        except psutil.Error:
            return True


def identity_of(pid: int) -> Identity:
    """Raises psutil.NoSuchProcess when it has ended already."""
    return Identity(pid, psutil.Process(pid).create_time())


def belonging_to(folder: Path, leader_pid: int | None = None) -> list[psutil.Process]:
    """Living processes that name the folder in their command line, or are in the leader's session.

    The folder is one that only this installation uses; this process and its parents are never among them.
    """
    mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in mine:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and _belongs(process, folder, leader_pid):
                found.append(process)
    return found


def _belongs(process: psutil.Process, folder: Path, leader_pid: int | None) -> bool:
    if leader_pid is not None and os.getsid(process.pid) == leader_pid:
        return True
    place = str(folder)
    return any(
        argument == place or f"{place}/" in argument or argument.endswith(f"={place}") for argument in process.cmdline()
    )


def kill_all(processes: Iterable[psutil.Process], wait_s: float = KILL_WAIT_S) -> None:
    """SIGKILL each, and wait until they have ended, at most ``wait_s`` seconds."""
    doomed = list(processes)
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    still_running(doomed, time.monotonic() + wait_s)


def kill_all_of(folder: Path) -> bool:
    """SIGKILL all that belongs to a folder, and their offspring, which may not name it; gives whether there was any."""
    found = belonging_to(folder)
    kill_all([*found, *_offspring(found)])
    kill_all(belonging_to(folder))  # what one of them was just starting
    return bool(found)


def _offspring(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += process.children(recursive=True)
    return found


def still_running(processes: Iterable[psutil.Process], deadline_s: float) -> list[psutil.Process]:
    """Wait until all have ended, or the deadline of the monotonic clock; gives those that have not.

    One that has ended and that its parent never asks after counts as ended: in a container nobody may.
    """
    while True:
        left = [process for process in processes if _runs(process)]
        if not left or time.monotonic() >= deadline_s:
            return left
        time.sleep(LOOK_EVERY_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def terminate_leader(leader: Identity, folder: Path, wait_s: float) -> bool:
    """End a process group by its leader: SIGTERM, wait until all that belongs to the folder is gone, then SIGKILL.

    Blocks for at most ``wait_s`` and the wait after the kill. Gives whether all ended without being killed.
    """
    deadline_s = time.monotonic() + wait_s
    process = leader.find()
    if process is not None:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
        still_running([process], deadline_s)
    rest = still_running(belonging_to(folder, leader.pid if leader.owns_session() else None), deadline_s)
    kill_all(rest)
    return not rest

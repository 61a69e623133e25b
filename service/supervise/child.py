"""A child process that is started again when it ends or falls silent, after a pause that grows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.supervise.log_files import bound_log, last_lines, open_log
from service.supervise.vigil import Vigil

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_AFTER_S = 30.0  # a process that lived this long has shown that it can run


def pause_before_start_s(num_quick_ends: int) -> float:
    """Seconds to wait before a process that ended that often without becoming steady is started again."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num_quick_ends - 1, 10)) if num_quick_ends else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: ``module`` as ``__main__``, tied to the life of this process by a pipe.

    It gives signs of life (``pulse.beating``); after ``patience_s`` without any it counts as hung.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str]
    log_file: Path
    cwd: Path
    patience_s: float
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that ended without being told to; it is started again after ``pause_s``.

    ``silent_s`` tells of one that hung, and was killed for it, how long it gave no sign of life.
    """

    pid: int
    exit_code: int
    pause_s: float
    silent_s: float | None = None


class Child:
    """Keeps one program running. Not for several threads.

    Time comes in as an argument, from a monotonic clock.
    """

    def __init__(self, program: Program, lifeline: int) -> None:
        self._program = program
        self._lifeline = lifeline
        self._process: subprocess.Popen[bytes] | None = None
        self._vigil: Vigil | None = None
        self._silent_s: float | None = None
        self._started_s = 0.0
        self._start_at_s: float | None = None
        self._num_quick_ends = 0
        self._log_begin: int | None = None

    @property
    def name(self) -> str:
        return self._program.name

    @property
    def log_file(self) -> Path:
        return self._program.log_file

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def last_words(self, count: int) -> list[str]:
        """The newest lines of its log since it was started first; what an earlier `serve` left there is none of it."""
        return last_lines(self.log_file, count, self._log_begin or 0)

    def start(self, now_s: float) -> None:
        """Start the process now; there is none yet."""
        assert self._process is None, f"{self.name} runs already"
        program = self._program
        self._vigil = vigil = Vigil(program.patience_s, now_s)
        log = open_log(program.log_file)
        if self._log_begin is None:
            self._log_begin = os.fstat(log).st_size
        lifeline = ("service.supervise.lifeline", str(self._lifeline), str(vigil.writing), program.module)
        # -P: a `service.py` in the folder where `serve` was called must not take the place of ours.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *lifeline, *program.arguments],
            env=dict(program.environment),
            cwd=program.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(self._lifeline, vigil.writing, *program.descriptors),
            start_new_session=True,  # Ctrl-C is for the supervisor, which ends its children in order
        )
        os.close(log)
        vigil.hand_over()
        self._started_s, self._start_at_s, self._silent_s = now_s, None, None

    def tick(self, now_s: float) -> Ended | None:
        """Look after the process: notice its end, kill it when it hangs, start it again when its pause is over."""
        if self._process is None:
            if self._start_at_s is not None and now_s >= self._start_at_s:
                self.start(now_s)
            return None
        exit_code = self._process.poll()
        if exit_code is None:
            self._kill_if_hung(now_s)
            bound_log(self.log_file)
            return None
        self._num_quick_ends = 1 if now_s - self._started_s >= STEADY_AFTER_S else self._num_quick_ends + 1
        pause_s = pause_before_start_s(self._num_quick_ends)
        ended = Ended(self._process.pid, exit_code, pause_s, self._silent_s)
        self._forget()
        self._start_at_s = now_s + pause_s
        return ended

    def _kill_if_hung(self, now_s: float) -> None:
        assert self._process is not None
        assert self._vigil is not None
        if self._silent_s is None and self._vigil.is_silent_too_long(now_s):
            # Its end is not waited for: one that hangs in the kernel may be long in dying.
            self._process.kill()
            self._silent_s = self._vigil.silent_s

    def _forget(self) -> None:
        assert self._vigil is not None
        self._vigil.close()
        self._process, self._vigil = None, None

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM), and do not start it again."""
        self._start_at_s = None
        if self._process is not None:
            self._process.terminate()

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """End the process now and reap it."""
        self._start_at_s = None
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._forget()

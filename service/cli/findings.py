"""What a check of `doctor` found, and how a check is run apart: whatever hangs or crashes in it, this process lives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.settings import environment
from service.supervise.supervisor import Mark


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``remedy`` is empty where all is well."""

    mark: Mark
    about: str
    text: str
    remedy: str = ""


def run_apart(arguments: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The output of a Python program, and the last line of its complaint if it failed; ended after ``limit_s``.

    ``variables`` is its environment, this process's by default.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=environment() if variables is None else dict(variables),
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {limit_s:g} s"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return "", last
    return done.stdout.strip(), ""

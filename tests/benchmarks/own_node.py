"""A second Ray node on this machine, which can be lost like a machine, and come back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.supervise.inherited import inherited
from tests.benchmarks.figures import ROOT
from tests.benchmarks.lost_power import lose_power
from tests.benchmarks.own_ray import OwnRay
from tests.benchmarks.second_node import STARTED

START_S = 60.0
LOOK_S = 0.05


class OwnNode:
    """A node with one CPU of a head that runs; ``start`` it first."""

    def __init__(self, ray: OwnRay, log: Path) -> None:
        self._ray = ray
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Join the head; waits until it has. Raises RuntimeError when it does not within a minute."""
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.second_node", self._ray.address],
                env={
                    **inherited(os.environ),
                    **self._ray.variables,
                    "OMP_NUM_THREADS": "1",
                    "RAY_TMPDIR": str(self._ray.folder),
                },
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_S
        while STARTED not in self._log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the second Ray node is not up: {self._log.read_text()[-2000:]}")
            time.sleep(LOOK_S)

    def lose(self) -> float:
        """All of its processes end at once; gives when, monotonic seconds."""
        assert self._process is not None
        at_s = lose_power(self._process.pid)
        self._process.wait(START_S)
        self._process = None
        return at_s

    def end(self) -> None:
        """Nothing of it is left."""
        if self._process is not None and self._process.poll() is None:
            self.lose()


@contextmanager
def own_node(ray: OwnRay, log: Path) -> Iterator[OwnNode]:
    """A second node that has joined; it ends with the block."""
    node = OwnNode(ray, log)
    try:
        node.start()
        yield node
    finally:
        node.end()

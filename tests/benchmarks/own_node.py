"""A second Ray node on this machine, which can be lost like a machine, and come back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.supervise.ray_head import OBJECT_STORE_BYTES, without_secrets
from tests.benchmarks.lost_power import lose_power
from tests.benchmarks.own_ray import OwnRay

ADDRESS = "127.0.0.2"
"""Not the head's, so that no driver takes it for its own."""

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
                self._command(),
                env={
                    **without_secrets(os.environ),
                    **self._ray.variables,
                    "OMP_NUM_THREADS": "1",
                    "RAY_TMPDIR": str(self._ray.folder),
                },
                cwd=self._ray.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_S
        while b"Ray runtime started" not in self._log.read_bytes():
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

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block"),
            *(f"--address={self._ray.address}", f"--node-ip-address={ADDRESS}"),
            *("--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"),
            *("--disable-usage-stats", "--num-cpus=1", f"--object-store-memory={OBJECT_STORE_BYTES}"),
        ]


@contextmanager
def own_node(ray: OwnRay, log: Path) -> Iterator[OwnNode]:
    """A second node that has joined; it ends with the block."""
    node = OwnNode(ray, log)
    try:
        node.start()
        yield node
    finally:
        node.end()

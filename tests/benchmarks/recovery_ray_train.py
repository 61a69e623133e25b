"""Ray Train as one side of the recovery measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.audit import Audit
from tests.benchmarks.figures import ROOT
from tests.benchmarks.own_node import OwnNode, own_node
from tests.benchmarks.own_ray import OwnRay, own_ray
from tests.benchmarks.recovery_setting import Setting, Side, rival_config

END_S = 20.0
HEALTH_CHECK_S = "0.1"
PLACEMENT_S = "5"
MONITOR_S = 0.5
TAIL_CHARS = 2000


@contextmanager
def ray_train(folder: Path, setting: Setting) -> Iterator[Side]:
    """An elastic TorchTrainer on a Ray of two nodes with one CPU each."""
    with own_ray(folder, 1) as head, own_node(head, folder / "node.log") as node:
        side = RayTrainSide(head, node, folder, setting)
        try:
            yield side
        finally:
            side.stop()


class RayTrainSide:
    """An elastic TorchTrainer with one or two workers, in a driver process of its own, at its most attentive.

    Its controller looks every 0.1 s instead of every 2 s, considers a resize every 0.5 s instead of every minute, and
    gives up on places that a lost node cannot give after 5 s instead of a minute; it checkpoints as often as ours does.
    """

    name = "ray_train"

    def __init__(self, head: OwnRay, node: OwnNode, folder: Path, setting: Setting) -> None:
        self._node = node
        self.audit = Audit(folder / "audit")
        self.audit.folder.mkdir(parents=True)
        config = {"address": head.address, "monitor_s": MONITOR_S, **rival_config(setting, self.audit, folder)}
        environment = {
            **os.environ,
            **head.variables,
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": HEALTH_CHECK_S,
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": PLACEMENT_S,
            "RAY_TRAIN_V2_ENABLED": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._log = (folder / "driver.log").open("wb")
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.rival_ray_train", json.dumps(config)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def scale(self, num_workers: int) -> None:
        """Leave room for so many workers."""
        assert self._driver.stdin is not None
        self._driver.stdin.write(f"{num_workers}\n".encode())
        self._driver.stdin.flush()

    def prepare(self) -> None:
        """It keeps nothing ready."""

    def lose_node(self) -> float:
        """The second Ray node is killed with its worker."""
        return self._node.lose()

    def return_node(self) -> None:
        """A second Ray node joins; the trainer uses it by itself."""
        self._node.start()

    def check(self) -> None:
        """Raises RuntimeError when the driver is gone."""
        if self._driver.poll() is not None:
            raise RuntimeError(f"Ray Train's driver ended: {Path(self._log.name).read_text()[-TAIL_CHARS:]}")

    def stop(self) -> None:
        """End the driver; its actors end with it."""
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        try:
            self._driver.wait(END_S)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait(END_S)
        self._log.close()

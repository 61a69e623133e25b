"""torchrun's elastic agents as one side of the recovery measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.supervise.ports import free_port
from tests.benchmarks.audit import Audit
from tests.benchmarks.figures import ROOT
from tests.benchmarks.lost_power import lose_power
from tests.benchmarks.recovery_setting import Setting, Side, rival_config

LOOPBACK = "127.0.0.1"
END_S = 40.0  # an agent gives its worker 30 s
MONITOR_S = 0.1
KEEP_ALIVE_S = 1
LAST_CALL_S = 1
UNLIMITED = 10**6
TAIL_CHARS = 2000
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    # With the store that agents share by default, torch 2.13's first agent never tells one that joins later where the
    # master is, and one ends after 60 s; and where one agent counts a failure as a restart and the other as a change of
    # members, their workers look for each other under different keys and fail several times.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


@contextmanager
def torchrun(folder: Path, setting: Setting) -> Iterator[Side]:
    """Two agents of one worker each."""
    side = TorchrunSide(folder, setting)
    try:
        side.scale(2)
        yield side
    finally:
        side.stop()


class TorchrunSide:
    """An agent a machine, at its most attentive; the first holds the c10d rendezvous, which torchrun cannot lose.

    The agents look at their workers every 0.1 s. They send a sign of life every second instead of every 5 s, and a
    rendezvous waits 1 s for more than the least number of machines, not 30 s: it takes whole seconds.
    """

    name = "torchrun"

    def __init__(self, folder: Path, setting: Setting) -> None:
        self.audit = Audit(folder / "audit")
        self.audit.folder.mkdir(parents=True)
        (folder / "storage").mkdir()
        self._folder = folder
        self._config = json.dumps(rival_config(setting, self.audit, folder))
        self._port = free_port()
        self._first = self._agent("first", is_host=True)
        self._second: subprocess.Popen[bytes] | None = None

    def scale(self, num_workers: int) -> None:
        """The second agent leaves as it is asked to, by SIGTERM, or comes back."""
        if num_workers == 2 and self._second is None:
            self._second = self._agent("second", is_host=False)
        elif num_workers == 1 and self._second is not None:
            self._second.terminate()
            _wait_ended(self._second)
            self._second = None

    def prepare(self) -> None:
        """It keeps nothing ready."""

    def lose_node(self) -> float:
        """The second agent is killed with its worker."""
        assert self._second is not None
        at_s = lose_power(self._second.pid)
        self._second = None
        return at_s

    def return_node(self) -> None:
        """A second agent joins."""
        self.scale(2)

    def check(self) -> None:
        """Raises RuntimeError when an agent is gone that should be there."""
        for name, agent in (("first", self._first), ("second", self._second)):
            if agent is not None and agent.poll() is not None:
                raise RuntimeError(f"torchrun's {name} agent ended: {self._log(name).read_text()[-TAIL_CHARS:]}")

    def stop(self) -> None:
        """End the agents, which end their workers."""
        agents = [agent for agent in (self._second, self._first) if agent is not None]
        for agent in agents:
            agent.terminate()
        for agent in agents:
            _wait_ended(agent)

    def _agent(self, name: str, *, is_host: bool) -> subprocess.Popen[bytes]:
        rendezvous = {
            "is_host": int(is_host),
            "keep_alive_interval": KEEP_ALIVE_S,
            "last_call_timeout": LAST_CALL_S,
        }
        options = [
            *("--nnodes=1:2", "--nproc-per-node=1", f"--max-restarts={UNLIMITED}", f"--monitor-interval={MONITOR_S}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={LOOPBACK}:{self._port}", "--rdzv-id=benchmark"),
            "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in rendezvous.items()),
            f"--local-addr={LOOPBACK}",
        ]
        with self._log(name).open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", *options),
                    *("-m", "tests.benchmarks.rival_torchrun", self._config),
                ],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _wait_ended(agent: subprocess.Popen[bytes]) -> None:
    """Until it has ended with its worker, by force where it does not come to it."""
    try:
        agent.wait(END_S)
    except subprocess.TimeoutExpired:
        lose_power(agent.pid)
        agent.wait(END_S)

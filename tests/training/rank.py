"""One worker in a process of its own, for tests that kill or freeze it: commands come over a pipe."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from tests.forking import FORKS, SPAWNS, import_before_forking
from tests.training.fake_store import FakeStore
from workers.assignment import Assignment
from workers.training.session import Session

# Torch, and what its optimizers import when the first of them is made.
import_before_forking(__name__, "tests.training.tasks", "torch._dynamo")

WAIT_S, ANSWER_S = 40.0, 120.0
NUM_SAMPLES = 40


class StoreManager(BaseManager):
    """The ranks' side of a ``FakeStore`` in the test's process."""


StoreManager.register("store")


def serve_store(store: FakeStore) -> tuple[Any, bytes]:
    """Serve ``store`` from a thread; the address and key to connect with."""

    class Serving(BaseManager):
        pass

    Serving.register("store", callable=lambda: store)
    key = os.urandom(16)
    server = Serving(address=("127.0.0.1", 0), authkey=key).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.address, key


class RemoteCalls:
    """``StoreCalls`` to the test's process."""

    address = "127.0.0.1"

    def __init__(self, address: Any, key: bytes) -> None:
        manager = StoreManager(address=address, authkey=key)
        manager.connect()
        self._store = manager.store()  # type: ignore[attr-defined]  # made by register

    def set(self, group: str, key: str, value: bytes) -> None:
        self._store.set(group, key, value)

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        value: bytes = self._store.get(group, key, timeout_s)
        return value

    def add(self, group: str, key: str, amount: int) -> int:
        return int(self._store.add(group, key, amount))

    def check(self, group: str, keys: list[str]) -> bool:
        return bool(self._store.check(group, keys))


class FileGate:
    """Waits at a named sample of the stream for a file; says so by another. Seen from the test as paths."""

    def __init__(self, folder: Path, worker_id: str) -> None:
        self.waiting, self._closed = folder / f"waiting-{worker_id}", folder / f"closed-{worker_id}"

    def close(self, num_read: int) -> None:
        """Hold the worker once it has read so many samples; at once as a whole, as it may be looking."""
        fresh = self._closed.with_name(f"{self._closed.name}.new")
        fresh.write_text(str(num_read))
        fresh.replace(self._closed)

    def open(self) -> None:
        """Let the worker pass."""
        self._closed.unlink()

    def pass_through(self, num_read: int) -> None:
        while num_read >= self._most():
            self.waiting.touch()
            time.sleep(0.005)  # a frozen process must not spin; nothing is measured here

    def _most(self) -> float:
        try:
            return int(self._closed.read_text())
        except FileNotFoundError:
            return math.inf


def build(config: dict[str, Any]) -> Any:
    """The entrypoint: the same small regression as in the other tests, behind a gate of files."""
    import torch

    from tests.training.tasks import Regression, mlp, mse
    from workers.task import TrainingTask

    gate = FileGate(Path(config["folder"]), config["worker"])

    class Gated(Regression):
        num_read = 0

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            gate.pass_through(self.num_read)
            self.num_read += 1
            return super().__getitem__(index)

    return TrainingTask(
        model=mlp(torch.float64),
        train_data=Gated(NUM_SAMPLES, torch.float64),
        loss=mse,
        optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    )


def answers_of(start: Any, size: int, serve: Callable[..., None], *given: Any) -> list[Any]:
    """What each rank of so many tells, each a process by ``start`` (``FORKS`` or ``SPAWNS``); all leave together.

    ``serve`` is called with its pipe, the rank, the size, the address and key of a store, and what is ``given``. It
    sends its answer, and ends once it is told to.
    """
    address, pipes, processes = serve_store(FakeStore()), [], []
    for rank in range(size):
        pipe, theirs = start.Pipe()
        processes.append(start.Process(target=serve, args=(theirs, rank, size, address, *given), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(pipe)
    for pipe in pipes:
        assert pipe.poll(ANSWER_S), "a rank did not answer"
    results = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send("leave")
    for process in processes:
        process.join(ANSWER_S)
        assert process.exitcode == 0
    return results


def as_own_machine(name: str) -> None:
    """Let NCCL take this process for one on a machine of its own, as it takes no two of a machine on one GPU."""
    os.environ |= {"NCCL_HOSTID": name, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def serve(pipe: Connection, assignment: Assignment, address: Any, key: bytes) -> None:
    """The process: method names and arguments in, answers out, until the pipe closes."""
    as_own_machine(assignment.worker_id)
    session = Session(assignment, RemoteCalls(address, key), None)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # the test is over; a thread may be stuck on purpose
        pipe.send(getattr(session, name)(*arguments))


class RankProcess:
    """A worker's session in another process, with the session's own methods."""

    def __init__(self, assignment: Assignment, address: Any, key: bytes) -> None:
        self._pipe, theirs = FORKS.Pipe()
        start = SPAWNS if assignment.spec.resources.gpus else FORKS
        self.process = start.Process(target=serve, args=(theirs, assignment, address, key), daemon=True)
        self.process.start()
        theirs.close()

    def start(self) -> None:
        self._call("start")

    def poll(self, *arguments: Any) -> Any:
        return self._call("poll", *arguments)

    def halt(self, *arguments: Any) -> None:
        self._call("halt", *arguments)

    def stop(self, term: int, save: bool) -> None:
        self._call("stop", term, save)

    def wait_ended(self, timeout_s: float) -> bool:
        return bool(self._call("wait_ended", timeout_s))

    def _call(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        assert self._pipe.poll(WAIT_S), f"a rank did not answer {name}"
        return self._pipe.recv()


def await_true(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another process does."""
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if condition():
            return
        tick.wait(0.005)
    raise AssertionError(f"waited {WAIT_S:g} s in vain for {what}")

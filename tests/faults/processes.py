"""The service's real processes, forked from one that has imported everything, so that they come up in milliseconds.

The API listens on a socket that outlives it, as under `serve`; the reconciler drives the cluster of
``stage_cluster``. Every one can be killed or stopped by name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, cast

from service import services
from service.cluster import Cluster
from service.log import configure_log
from service.ports import ClusterPort
from service.reconciler import orphans, reaper
from service.reconciler.process import MakeCluster, Process
from service.settings import Settings, load_settings
from service.store.opening import Store, open_store
from service.store.port import ReconcilerStore
from service.supervise import api_process
from service.supervise.home import Home
from service.supervise.ray_record import RayRecord, write_ray_record
from tests.faults.crash_points import Armed, Committing, CrashPoint
from tests.faults.ray_calls import DividedCluster
from tests.faults.ray_effects import FollowedCluster
from tests.faults.stage_cluster import RemoteCluster, serve_cluster
from tests.forking import FORKS
from tests.waiting import wait_for

import service.app  # noqa: F401  isort: skip  # what the API's process would import after its fork

TOLD_CHARACTERS = 3000
CLUSTER, API, RECONCILER = "cluster", "api", "reconciler"
NUM_CPUS = 4.0
END_S = 20.0
REAP_S = 0.5
PATIENCE_S = 1.0


def _enter(environment: Mapping[str, str], log: str) -> None:
    """A process's surroundings as `serve` would make them."""
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed one has told all then
    configure_log()


def _run_cluster(
    environment: Mapping[str, str], log: str, _: None, listener: socket.socket, num_cpus: float, diary: str
) -> None:
    _enter(environment, log)
    asyncio.run(serve_cluster(listener, num_cpus, Path(diary)))


def _run_api(environment: Mapping[str, str], log: str, point: CrashPoint | None, listener: socket.socket) -> None:
    _enter(environment, log)
    if point is not None:
        # This process's own copy of the name by which the wiring opens the store.
        services.open_store = _armed_store(point)
    api_process.main(listener.detach())


def _armed_store(point: CrashPoint) -> Callable[..., Store]:
    def opened(*arguments: Any) -> Store:
        store = _with_commits(open_store(*arguments), point)
        armed: Any = {point.part: Armed(getattr(store, point.part), point)}
        return replace(store, **armed)

    return opened


def _with_commits(store: Store, point: CrashPoint) -> Store:
    database: Any = store.database
    database._transactions = Committing(database._transactions, point)
    return store


def _remote(path: str, address: str, namespace: str) -> ClusterPort:
    return RemoteCluster(path)


def _run_reconciler(
    environment: Mapping[str, str], log: str, point: CrashPoint | None, make_cluster: MakeCluster, is_patient: bool
) -> None:
    _enter(environment, log)
    if not is_patient:
        # A test cannot wait for the patience of production; the rule that it counts stays.
        orphans.PATIENCE_S, reaper.REAP_S, reaper.BUNDLES_S = PATIENCE_S, REAP_S, REAP_S

    async def run() -> int:
        settings = load_settings()
        store = open_store(settings.database_url)
        try:
            if point is None:
                return await Process(settings, store.reconciler, make_cluster).run()
            # Names that both ports have do not occur.
            armed = cast(ReconcilerStore, Armed(_with_commits(store, point).reconciler, point))

            def make_armed(address: str, namespace: str) -> ClusterPort:
                if point.is_within_a_call:
                    return DividedCluster(address, namespace, point)
                if point.is_within_a_blocking_call:
                    return FollowedCluster(address, namespace, point)
                return cast(ClusterPort, Armed(make_cluster(address, namespace), point))

            return await Process(settings, armed, make_armed).run()
        finally:
            await store.close()

    code = asyncio.run(run())
    sys.stdout.flush()
    os._exit(code)


class Installation:
    """One home with its three processes, by name. Use as a context manager: nothing of it outlives the block."""

    def __init__(
        self,
        settings: Settings,
        *,
        names: Sequence[str] = (CLUSTER, API, RECONCILER),
        ray: RayRecord | None = None,
        is_patient: bool = False,
        beside: Installation | None = None,
    ) -> None:
        """``ray``: a real one to use in place of the stage; its environment was set before anything was forked.

        ``is_patient``: the reaper takes its time, as in production.
        ``beside``: another replica, whose stage this one uses.
        """
        self.settings = settings
        self._names = tuple(name for name in names if name != CLUSTER) if beside else names
        self._ray, self._is_patient = ray, is_patient
        self.home = Home(settings.home)
        self.diary = beside.diary if beside else settings.home / "diary"
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._environment = settings.as_environment()
        self._cluster_socket = beside._cluster_socket if beside else str(settings.home / "cluster.sock")
        self._is_alone = beside is None
        # Listens before its process does, so that whoever calls early waits for the answer.
        self._cluster_listener = socket.socket(socket.AF_UNIX)
        self._processes: dict[str, ForkServerProcess] = {}
        self._frozen: list[ForkServerProcess] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def cluster(self) -> RemoteCluster:
        """A driver of the cluster for the test itself."""
        return RemoteCluster(self._cluster_socket)

    def __enter__(self) -> Installation:
        self.home.run.mkdir(mode=0o700, exist_ok=True)
        self.home.logs.mkdir(exist_ok=True)
        if self._is_alone:
            self.diary.touch(mode=0o600)
            self._cluster_listener.bind(self._cluster_socket)
            self._cluster_listener.listen()
        # Not a Ray of its own: the jobs are to go on when the service ends.
        record = self._ray or RayRecord(address="127.0.0.1:1", is_own=False, temp_dir=str(self.home.path / "ray"))
        write_ray_record(self.home.ray_file, replace(record, is_own=False))
        for name in self._names:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._processes.values(), *self._frozen]:
            process.kill()
            process.join(END_S)
        self._listener.close()
        self._cluster_listener.close()

    def start(self, name: str, point: CrashPoint | None = None) -> ForkServerProcess:
        """Start a process, with a crash point if one is given; a frozen one of its name stays beside it."""
        log = self.home.logs / f"{name}.log"
        log.touch(mode=0o600)
        make_cluster: MakeCluster = Cluster if self._ray else partial(_remote, self._cluster_socket)
        target, arguments = {
            CLUSTER: (_run_cluster, (self._cluster_listener, NUM_CPUS, str(self.diary))),
            API: (_run_api, (self._listener,)),
            RECONCILER: (_run_reconciler, (make_cluster, self._is_patient)),
        }[name]
        process = FORKS.Process(target=target, args=(self._environment, str(log), point, *arguments), name=name)
        process.start()
        if self.is_alive(name):
            self._frozen.append(self._processes[name])
        self._processes[name] = process
        return process

    def pid(self, name: str) -> int:
        """Of the process that was started last under a name."""
        return _pid(self._processes[name])

    def is_alive(self, name: str) -> bool:
        """Whether a process of that name was started and has not ended."""
        return name in self._processes and self._processes[name].is_alive()

    def kill(self, name: str) -> None:
        """SIGKILL, and see it end."""
        self._processes[name].kill()
        self._processes[name].join(END_S)

    def freeze(self, name: str) -> ForkServerProcess:
        """SIGSTOP; the process, for another to be started under its name while it stands still.

        Raises ProcessLookupError where it has ended.
        """
        process = self._processes[name]
        os.kill(_pid(process), signal.SIGSTOP)
        # The signal is on its way to each thread; one that still runs may take a lock.
        wait_for(f"the standstill of the {name}", lambda: _stands_still(_pid(process)))
        return process

    def thaw(self, process: ForkServerProcess) -> None:
        """SIGCONT."""
        os.kill(_pid(process), signal.SIGCONT)

    def terminate(self, name: str) -> None:
        """SIGTERM: it is to end in order."""
        self._processes[name].terminate()

    def tend(self) -> list[str]:
        """Start again what has ended, as the supervisor would; which these were."""
        ended = [name for name, process in self._processes.items() if not process.is_alive()]
        for name in ended:
            self.start(name)
        return ended

    def has_struck(self, name: str, point: CrashPoint) -> bool:
        """Whether a process of that name came to its crash point."""
        return point.last_words in self.log(name)

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.home.logs / f"{name}.log").read_text()

    def told(self) -> str:
        """The last that each process has written, for who finds out why something does not come."""
        return "\n".join(f"{name}: {self.log(name)[-TOLD_CHARACTERS:]}" for name in self._processes)


def _stands_still(pid: int) -> bool:
    states = set()
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.add(task.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread has ended since it was listed
    if states <= {"Z", "X"}:
        raise ProcessLookupError(f"process {pid} has ended")
    return states == {"T"}


def _pid(process: ForkServerProcess) -> int:
    assert process.pid is not None
    return process.pid

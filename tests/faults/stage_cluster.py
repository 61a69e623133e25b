"""A cluster in memory whose workers note what they do, as a process of its own that outlives the service.

``serve_cluster`` is that process; ``RemoteCluster`` is the reconciler's port to it. Each call is one
connection to a UNIX socket: a pickled request, a pickled answer. A caller that is killed in mid-call
leaves its effect behind, as with Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.ports import ClusterError, ClusterLostError, ControllerFaultError, ControllerSilentError
from service.records import Autoscaling, ClusterView
from tests.fakes import FakeCluster
from tests.faults.stage import Player, Saved, Stage, make_stage
from workers.assignment import JobKey
from workers.control.actor import Tail
from workers.control.fleet import Fleet, Heard
from workers.control.launch import Launch
from workers.control.names import WorkerName, parse_name
from workers.plan import Plan, PlanId
from workers.status import Acknowledged, Direction, JobSnapshot, WorkerStatus

PLAY_S = 0.005
CALL_S = 10.0
CLUSTER_BYTES = 2**26


class StageFleet:
    """A controller's ``Fleet`` over a stage."""

    def __init__(self, stage: Stage, term: int) -> None:
        self.news = asyncio.Event()
        self._stage, self._term = stage, term
        self._statuses: dict[str, WorkerStatus] = {}
        self._told: set[str] = set(stage.departed)
        self._is_superseded = False
        self._head_seen_s: float | None = None
        stage.term = max(stage.term, term)

    @property
    def worker_ids(self) -> tuple[str, ...]:
        return tuple(self._stage.workers)

    async def adopt(self) -> tuple[str, ...]:
        return self.worker_ids

    def heard(self) -> Heard:
        lost = {i: why for i, why in self._stage.departed.items() if i not in self._told}
        self._told |= set(lost)
        heard = Heard(
            statuses=self._statuses, lost=lost, head_seen_s=self._head_seen_s, is_superseded=self._is_superseded
        )
        self._statuses = {}
        return heard

    def start(self, worker_id: str, avoids: frozenset[str]) -> None:
        self._stage.come(worker_id)
        self.news.set()

    def can_poll(self, worker_id: str) -> bool:
        return worker_id in self._stage.workers

    def poll(self, worker_id: str, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> None:
        worker = self._stage.workers[worker_id]
        assert isinstance(worker, Player)
        status = worker.answer(self._term, plan, acked, wants_records)
        if status is None:
            self._is_superseded = True
        else:
            self._statuses[worker_id] = status
        self.news.set()

    def halt(self, worker_id: str, plan_id: PlanId) -> None:
        if worker_id in self._stage.workers:
            self._stage.workers[worker_id].halt(self._term, plan_id)

    def stop(self, worker_id: str, save: bool) -> None:
        self._stage.go(worker_id, "it ended", should_save=save)
        self.news.set()

    def kill(self, worker_id: str) -> None:
        self._stage.go(worker_id, "it was killed")
        self.news.set()

    def ask_head(self) -> None:
        self._head_seen_s = time.monotonic()
        self.news.set()

    async def tail(self, worker_id: str, offset: int) -> Tail | None:
        return None

    def leave(self) -> None:
        return

    async def bundle(self) -> list[Any]:
        return []


class StageCluster(FakeCluster):
    """All stages of one installation, and an autoscaler that has no nodes; ``play`` drives them until cancelled."""

    def __init__(self, num_cpus: float, diary: Path) -> None:
        super().__init__(num_cpus=num_cpus)
        self.autoscaling = Autoscaling()
        self._diary = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stages: dict[JobKey, Stage] = {}
        self._saved: dict[str, Saved] = {}

    async def play(self) -> None:
        while True:
            for stage in self._stages.values():
                stage.play()
            await asyncio.sleep(PLAY_S)

    async def add_stray(self, name: str) -> None:
        """An actor that nobody owns."""
        self.strays.add(name)

    async def kill(self, names: Sequence[str]) -> None:
        await super().kill(names)
        for parsed in [parse_name(name) for name in names]:
            if isinstance(parsed, WorkerName) and parsed.key in self._stages:
                self._stages[parsed.key].go(parsed.worker_id, "it was killed")

    def _fleet(self, key: JobKey, term: int, launch: Launch) -> Fleet:
        if key not in self._stages:
            saved = self._saved.setdefault(key.job_id, [])
            self._stages[key] = make_stage(key, launch, saved, self._diary, seed=len(self._stages))
            self.workers[key] = self._stages[key].workers  # type: ignore[assignment]  # named and counted alike
        return StageFleet(self._stages[key], term)


class RemoteCluster:
    """``ClusterPort`` on a socket; every call has a bound."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def connect(self) -> None:
        await self._call("connect")

    async def close(self) -> None:
        return

    async def is_reachable(self) -> bool:
        with contextlib.suppress(ClusterError):
            return bool(await self._call("is_reachable"))
        return False

    def has_node(self) -> bool:
        return True

    async def names(self) -> list[str]:
        found: list[str] = await self._call("names")
        return found

    async def start_controller(self, key: JobKey, term: int, launch: Launch) -> None:
        await self._call("start_controller", key, term, launch)

    async def direct(
        self, key: JobKey, term: int, direction: Direction, acked: Acknowledged, bound_s: float
    ) -> JobSnapshot | None:
        try:
            async with asyncio.timeout(bound_s):
                found: JobSnapshot | None = await self._call("direct", key, term, direction, acked, bound_s)
                return found
        except TimeoutError:
            raise ControllerSilentError(f"{key} did not answer within {bound_s:g} s") from None

    async def end_controller(self, key: JobKey, term: int) -> None:
        await self._call("end_controller", key, term)

    async def kill(self, names: Sequence[str]) -> None:
        await self._call("kill", list(names))

    async def add_stray(self, name: str) -> None:
        """For the test: an actor that nobody owns."""
        await self._call("add_stray", name)

    async def who_sees(self, path: str, node_ids: Sequence[str]) -> frozenset[str]:
        found: frozenset[str] = await self._call("who_sees", path, list(node_ids))
        return found

    async def view(self) -> ClusterView:
        found: ClusterView = await self._call("view")
        return found

    async def demand(self, bundles: Sequence[Mapping[str, float]]) -> None:
        await self._call("demand", list(bundles))

    async def keep_spares(self, wanted: Mapping[str, int]) -> None:
        await self._call("keep_spares", dict(wanted))

    async def _call(self, method: str, *arguments: object) -> Any:
        try:
            async with asyncio.timeout(CALL_S):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=CLUSTER_BYTES)
                try:
                    writer.write(pickle.dumps((method, arguments)))
                    writer.write_eof()
                    answer = pickle.loads(await reader.read(-1))
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError) as error:
            raise ClusterLostError(f"{method}: {type(error).__name__}: {error}") from error
        if isinstance(answer, ClusterError):
            raise answer
        return answer


async def serve_cluster(listener: socket.socket, num_cpus: float, diary: Path) -> None:
    """Answer calls on a UNIX socket that listens, until cancelled."""
    cluster = StageCluster(num_cpus, diary)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, arguments = pickle.loads(await reader.read(-1))
        try:
            result = await getattr(cluster, method)(*arguments)
        except ClusterError as error:
            result = error
        except Exception as error:  # as Ray hands over what an actor's method raised
            result = ControllerFaultError(f"{method} failed: {type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            writer.write(pickle.dumps(result))
            await writer.drain()
            writer.close()

    server = await asyncio.start_unix_server(answer, sock=listener, limit=CLUSTER_BYTES)
    async with server:
        await asyncio.gather(server.serve_forever(), cluster.play())

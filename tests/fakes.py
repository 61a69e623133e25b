"""Small real stand-ins for what lies behind our ports."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import optuna.importance  # noqa: F401  # a sweep's process loads it beside the search; all here would stand still

from service.ports import (
    ClusterAwayError,
    ClusterLostError,
    ControllerFaultError,
    ControllerLostError,
    ControllerSilentError,
)
from service.records import Autoscaling, ClusterView, NodeView
from tests.control.fake_fleet import DIVERGED, FakeFleet, FakeWorker, Measured, falling
from tuning.orders import Answer, Question
from tuning.search import Search, begun
from workers.assignment import JobKey
from workers.control.controller import JobController
from workers.control.fleet import Fleet
from workers.control.launch import Launch
from workers.control.names import controller_name, sweep_name, worker_name
from workers.spec import JobSpec
from workers.status import Acknowledged, Direction, JobSnapshot, RunPhase


class FakeCluster:
    """A cluster in memory: the real controllers over workers that take no time.

    ``workers`` are those alive, by attempt: they outlive their controllers. Tests kill, silence and
    lose what they like, or let all fail at the round ``fails_at``, by ``failure``. Every round of a job reports its
    ``values`` besides. Unless ``is_admitting`` whoever is ``joining`` waits for ever. Nobody trains beyond the
    round ``upto``. While ``refusal`` is set no controller gets as far as being prepared; while ``keeps_outcomes`` no
    outcome is told.
    """

    def __init__(self, num_cpus: float = 4.0, total: int = 20) -> None:
        self.num_cpus, self.total = num_cpus, total
        self.fails_at: int | None = None
        self.failure = DIVERGED
        self.values: Callable[[JobSpec], Mapping[str, float]] = lambda _: {}
        self.measured: Measured = falling
        self.upto = sys.maxsize
        self.refusal: ControllerLostError | ControllerFaultError | None = None
        self.is_up = True
        self.is_node_up = True
        self.is_admitting = True
        self.joining = asyncio.Event()
        self.machines: tuple[str, ...] = ("n",)
        self.leaving: set[str] = set()
        self.blind: set[str] = set()
        self.workers: dict[JobKey, dict[str, FakeWorker]] = {}
        self.fleets: dict[JobKey, FakeFleet] = {}
        self.controllers: dict[str, JobController] = {}
        self.searches: dict[str, Search] = {}
        self.launches: list[tuple[JobKey, int, Launch]] = []
        self.strays: set[str] = set()
        self.silent: set[str] = set()
        self.faulty: set[str] = set()
        self.keeps_outcomes = False
        self.killed: list[str] = []
        self.seen_terms: list[int] = []
        self.autoscaling: Autoscaling | None = None
        self.demands: list[tuple[Mapping[str, float], ...]] = []
        self.spares: dict[str, int] = {}
        self.names_of: dict[str, str] = {}

    async def connect(self) -> None:
        self._check()
        if not self.is_node_up:
            raise ClusterAwayError("no node is here; start one")
        self.joining.set()
        if not self.is_admitting:
            await asyncio.Event().wait()

    async def close(self) -> None:
        return

    async def is_reachable(self) -> bool:
        return self.is_up

    def has_node(self) -> bool:
        return self.is_node_up

    async def names(self) -> list[str]:
        self._check()
        workers = [worker_name(key, worker) for key, alive in self.workers.items() for worker in alive]
        return [*self.controllers, *workers, *self.strays, *self.searches]

    async def start_controller(self, key: JobKey, term: int, launch: Launch) -> None:
        self._check()
        self.launches.append((key, term, launch))
        if isinstance(self.refusal, ControllerLostError):
            raise self.refusal
        name = controller_name(key, term)
        if name not in self.controllers:
            self.controllers[name] = JobController(
                key, term, "ns", make_fleet=lambda given: self._fleet(key, term, given)
            )
        if self.refusal is not None:
            raise self.refusal
        await self.controllers[name].prepare(term, launch)

    async def direct(
        self, key: JobKey, term: int, direction: Direction, acked: Acknowledged, bound_s: float, wait_s: float
    ) -> JobSnapshot | None:
        self._check()
        name = controller_name(key, term)
        if name in self.silent:
            raise ControllerSilentError(f"{name} did not answer within {bound_s:g} s")
        if name in self.faulty:
            raise ControllerFaultError(f"{name} failed: KeyError")
        if name not in self.controllers:
            raise ControllerLostError(f"there is no actor {name}")
        told = await self.controllers[name].direct(term, direction, acked)
        return replace(told, phase=RunPhase.STOPPING, outcome=None) if told and self.keeps_outcomes else told

    async def end_controller(self, key: JobKey, term: int) -> None:
        name = controller_name(key, term)
        controller = self.controllers.get(name)
        if controller is not None and controller._course is not None:
            await controller._course.finish()
        await self.kill([name])

    async def ask_search(self, sweep_id: str, term: int, question: Question, bound_s: float) -> Answer | None:
        self._check()
        name = sweep_name(sweep_id, term)
        if name in self.silent:
            raise ControllerSilentError(f"{name} did not answer within {bound_s:g} s")
        if question.beginning is not None:
            self.searches[name] = begun(question.beginning)
        search = self.searches.get(name)
        return None if search is None else search.answer(question.trials, question.standing)

    async def end_search(self, sweep_id: str, term: int) -> bool:
        await self.kill([sweep_name(sweep_id, term)])
        return True

    async def end_pools(self, sweep_id: str) -> None:
        self._check()

    async def kill(self, names: Sequence[str]) -> None:
        self._check()
        for name in names:
            self.killed.append(name)
            self.strays.discard(name)
            self.searches.pop(name, None)
            await self.lose_controller(name)

    async def who_sees(self, path: str, node_ids: Sequence[str]) -> frozenset[str]:
        self._check()
        assert Path(path).is_file()
        return frozenset(node_id for node_id in node_ids if node_id not in self.blind)

    async def view(self) -> ClusterView:
        self._check()
        nodes = tuple(self._node(name) for name in self.machines)
        return ClusterView(is_up=True, address="fake", ray_version="0", nodes=nodes, autoscaling=self.autoscaling)

    async def demand(self, bundles: Sequence[Mapping[str, float]]) -> None:
        self._check()
        self.demands.append(tuple(bundles))

    async def keep_spares(self, wanted: Mapping[str, int]) -> None:
        self._check()
        self.spares = dict(wanted)

    def _node(self, name: str) -> NodeView:
        used = sum(worker.node_id == name for alive in self.workers.values() for worker in alive.values())
        total = {"cpus": self.num_cpus, "gpus": 0.0, "memory_bytes": 2.0**33}
        return NodeView(
            node_id=name,
            name=self.names_of.get(name, name),
            is_alive=True,
            total=total,
            free={**total, "cpus": self.num_cpus - used},
            is_leaving=name in self.leaving,
        )

    async def lose_controller(self, name: str) -> None:
        """A controller's process ends; its workers go on."""
        controller = self.controllers.pop(name, None)
        course = controller._course if controller else None
        if course is not None:
            await course.cancel()

    async def lose_everything(self) -> None:
        """The head dies, and with it all that ran there; a new one is there at once."""
        for name in list(self.controllers):
            await self.lose_controller(name)
        self.workers.clear()
        self.fleets.clear()
        self.searches.clear()

    def _fleet(self, key: JobKey, term: int, launch: Launch) -> Fleet:
        alive = self.workers.setdefault(key, {})
        self.seen_terms.append(term)
        self.fleets[key] = fleet = FakeFleet(
            term,
            total=self.total,
            workers=alive,
            machines=lambda: self.machines,
            fails_at=self.fails_at,
            failure=self.failure,
            values=self.values(launch.spec),
            measured=self.measured,
            may_reach=lambda: self.upto,
        )
        return fleet

    def _check(self) -> None:
        if not self.is_up:
            raise ClusterLostError("the cluster is gone")

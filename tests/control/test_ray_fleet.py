"""The fleet of a controller: one that has a successor without knowing it, and one that asks nodes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from itertools import combinations_with_replacement
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import NodeDiedError

from tests.control.test_controller import KEY, launch
from workers.assignment import Assignment
from workers.control import ray_fleet, ray_hands
from workers.control.hands import Hands, To
from workers.control.launch import Launch
from workers.control.names import SpareName, controller_name, worker_ids, worker_name
from workers.control.ray_fleet import RayFleet
from workers.control.ray_hands import RayHands

NUM_MOMENTS = 8
"""Before and after each call of a start: looking for a spare, making the actor, looking for a successor, starting."""


class SharedRay:
    """The hands of term 1, while term 2 takes office at one moment and looks for workers at the same or a later one."""

    def __init__(self, begins_at: int, lists_at: int) -> None:
        self._begins_at, self._lists_at = begins_at, lists_at
        self._num_moments = 0
        self._names: list[str] = [controller_name(KEY, 1)]
        self.started: list[str] = []
        self.killed: list[str] = []
        self.adopted: tuple[str, ...] = ()

    def pass_moment(self) -> None:
        """Whoever else is there does what it does now."""
        if self._num_moments == self._begins_at:
            self._names.append(controller_name(KEY, 2))
        if self._num_moments == self._lists_at:
            self.adopted = worker_ids(self._names, KEY)
        self._num_moments += 1

    async def names(self) -> list[str]:
        self.pass_moment()
        names = list(self._names)
        self.pass_moment()
        return names

    async def nearest(self, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        self.pass_moment()
        self.pass_moment()
        return []

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> str:
        self.pass_moment()
        self._names.append(name)
        self.pass_moment()
        return name

    async def start(self, actor: str, assignment: Assignment, to: To, bundle: list[Any]) -> None:
        self.pass_moment()
        self.started.append(actor)
        self.pass_moment()

    async def watch(self, actor: str, to: To, num_rests: int) -> int | None:
        await asyncio.Event().wait()
        return None

    async def kill(self, actor: str) -> None:
        self.killed.append(actor)
        self._names.remove(actor)


@pytest.mark.parametrize(("begins_at", "lists_at"), [*combinations_with_replacement(range(NUM_MOMENTS + 1), 2)])
def test_a_worker_that_a_successor_did_not_find_is_never_started(tmp_path: Path, begins_at: int, lists_at: int) -> None:
    async def act() -> None:
        ray = SharedRay(begins_at, lists_at)
        fleet = RayFleet(KEY, 1, cast(Hands, ray), launch(tmp_path))
        fleet.start("1.1", frozenset())
        async with asyncio.timeout(10):
            await fleet.news.wait()
        for _ in range(NUM_MOMENTS + 1):
            ray.pass_moment()
        assert bool(ray.started) == ("1.1" in fleet.worker_ids and fleet.can_poll("1.1"))
        assert ray.adopted == ("1.1",) if ray.started else ray.killed == [worker_name(KEY, "1.1")]
        assert fleet.heard().is_superseded == (not ray.started)
        fleet.abandon()

    asyncio.run(act())


class WhereTheyAre:
    """Hands that know the node of one worker; the other waits for its place."""

    async def names(self) -> list[str]:
        return [worker_name(KEY, "1.1"), worker_name(KEY, "1.2")]

    async def find(self, name: str) -> str:
        return name

    async def node_of(self, actor: str) -> str | None:
        return "n" if actor == worker_name(KEY, "1.1") else None

    async def watch(self, actor: str, to: To, num_rests: int) -> int | None:
        await asyncio.Event().wait()
        return None


def test_the_nodes_of_adopted_workers_are_known_before_they_answer(tmp_path: Path) -> None:
    async def act() -> None:
        fleet = RayFleet(KEY, 2, cast(Hands, WhereTheyAre()), launch(tmp_path))
        assert await fleet.adopt() == ("1.1", "1.2")
        async with asyncio.timeout(10):
            while not (nodes := fleet.heard().nodes):
                await asyncio.sleep(0)
        assert nodes == {"1.1": "n"}
        fleet.abandon()

    asyncio.run(act())


class AskedNodes:
    """Hands of which each question to a node fails at first."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask_node(self, node_id: str) -> None:
        self.asked.append(node_id)
        await asyncio.sleep(0)
        if self.asked.count(node_id) == 1:
            raise NodeDiedError("it has no node like that")


def test_a_node_is_asked_one_question_at_a_time_and_was_seen_when_it_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_fleet, "RETRY_S", 0.0)

    async def act() -> None:
        hands = AskedNodes()
        fleet = RayFleet(KEY, 1, cast(Hands, hands), launch(tmp_path))
        fleet.ask_node("n")
        async with asyncio.timeout(10):
            while not fleet.news.is_set():
                assert fleet.heard().nodes_seen_s == {}
                fleet.ask_node("n")
                await asyncio.sleep(0)
        assert fleet.heard().nodes_seen_s.keys() == {"n"}
        assert hands.asked == ["n", "n"]

    asyncio.run(act())


@pytest.mark.anyio
async def test_a_head_that_hangs_while_it_is_told_of_the_question_to_a_node_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is the question left there, once the head has it after all."""
    released, question = threading.Event(), asyncio.get_running_loop().create_future()
    taken_back: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def tell() -> asyncio.Future[None]:
        assert released.wait(5), "the loop stood still"
        return question

    # As Ray does where its head has not been told of a function yet.
    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=tell))
    monkeypatch.setattr(ray_hands, "_answer_task", lambda: task)
    here = SimpleNamespace(get_node_id=lambda: "b" * 56)
    monkeypatch.setattr(ray_hands.ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(ray_hands.ray, "cancel", lambda asked, force: taken_back.set_result(asked))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await RayHands("namespace").ask_node("a" * 56)
    assert not taken_back.done()
    released.set()
    assert await taken_back is question

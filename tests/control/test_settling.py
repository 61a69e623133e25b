"""A worker that may have a GPU or CPUs instead is made once there is room, and anew where another was faster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from ray.exceptions import RpcError

from tests.control.test_controller import KEY
from tests.control.test_ray_fleet import SharedRay
from tests.control.test_shapes import EITHER, launched
from workers.control import ray_fleet, settling
from workers.control.hands import Hands
from workers.control.launch import Launch
from workers.control.names import worker_name
from workers.control.ray_fleet import RayFleet

NAME = worker_name(KEY, "1.1")


class Crowded(SharedRay):
    """Hands that find room from look ``room_at`` on, and of whose actors the first ``num_late`` get no place.

    Of each the name stays for a while. ``kills``: each dies as it begins.
    """

    def __init__(self, room_at: int = 1, num_late: int = 0, *, kills: bool = False) -> None:
        super().__init__(begins_at=-1, lists_at=-1)
        self.num_looks, self._room_at, self._num_late, self._kills = 0, room_at, num_late, kills
        self.num_made, self._num_ending = 0, 0

    async def names(self) -> list[str]:
        names = [name for name in await super().names() if name != NAME or not self._kills]
        self._num_ending = max(0, self._num_ending - 1)
        return [*names, NAME] if self._num_ending else names

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> Any:
        self.num_looks += 1
        has_room = self.num_looks >= self._room_at
        if not has_room:
            return None
        if self._num_ending:
            raise ValueError(f"the name {name} is taken")
        self.num_made += 1
        return await super().create(launch, name, avoids, must_fit=must_fit)

    async def node_of(self, actor: str) -> str | None:
        return "n" if len(self.killed) >= self._num_late else None

    async def has_lost(self, actor: str) -> bool:
        return False

    async def give_up(self, actor: str) -> None:
        await self.kill(actor)

    async def kill(self, actor: str) -> None:
        await super().kill(actor)
        self._num_ending = 3


class Slow(Crowded):
    """Hands whose actors have a node once they were asked seven times."""

    num_asked = 0

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> Any:
        self.num_asked = 0
        return await super().create(launch, name, avoids, must_fit=must_fit)

    async def node_of(self, actor: str) -> str | None:
        self.num_asked += 1
        return "n" if self.num_asked >= 7 else None


class Never(Crowded):
    """Hands whose actors have no node, however often they are asked: how often that was, by actor."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> Any:
        self.asked.append(0)
        return await super().create(launch, name, avoids, must_fit=must_fit)

    async def node_of(self, actor: str) -> str | None:
        self.asked[-1] += 1
        return None


class Stuck(Crowded):
    """Hands that cannot give up one that got no place."""

    async def give_up(self, actor: str) -> None:
        raise RpcError("the head is away")


class Late(Crowded):
    """Hands that know whose room is gone."""

    async def has_lost(self, actor: str) -> bool:
        return await self.node_of(actor) is None


class Headless(Crowded):
    """Hands whose head, once one was made, does not answer the ``fails_at``-th question for names and two after it."""

    def __init__(self, fails_at: int) -> None:
        super().__init__(num_late=1)
        self._upto_failure = fails_at

    async def names(self) -> list[str]:
        self._upto_failure -= self.num_made > 0
        if self.num_made and -3 < self._upto_failure <= 0:
            raise RpcError("the head is away")
        return await super().names()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for constant in ("ROOM_LOOK_S", "SEAT_LOOK_S"):
        monkeypatch.setattr(settling, constant, 0.0)
    monkeypatch.setattr(ray_fleet, "RETRY_S", 0.0)
    monkeypatch.setattr(settling, "NUM_LOOKS", 2)
    monkeypatch.setattr(settling, "LOST_LOOKS", 1)


@pytest.mark.parametrize(("room_at", "num_late", "num_looks"), [(3, 0, 3), (1, 2, 3)], ids=["no room", "too late"])
def test_it_starts_where_there_is_room_in_the_end(tmp_path: Path, room_at: int, num_late: int, num_looks: int) -> None:
    async def act() -> None:
        hands = Crowded(room_at, num_late)
        fleet = RayFleet(KEY, 1, cast(Hands, hands), launched(tmp_path, EITHER))
        fleet.start("1.1", frozenset())
        async with asyncio.timeout(10):
            await fleet.news.wait()
        assert (hands.num_looks, hands.killed) == (num_looks, [NAME] * num_late)
        assert (hands.started, fleet.can_poll("1.1")) == ([NAME], True)
        fleet.abandon()

    asyncio.run(act())


def test_one_that_begins_slowly_is_waited_for_longer_each_time(tmp_path: Path) -> None:
    assert started_by(Slow(), tmp_path).killed == [NAME] * 2


def test_none_is_waited_for_so_long_that_room_of_the_other_kind_would_not_be_seen(tmp_path: Path) -> None:
    hands, given = Never(), launched(tmp_path, EITHER)

    async def make() -> Any:
        return await hands.create(given, NAME, frozenset(), must_fit=False)

    asyncio.run(settling.settle(cast(Hands, hands), NAME, make, lambda: len(hands.asked) > 6))
    most = settling.NUM_LOOKS * settling.MOST_PATIENCE
    assert hands.asked == [2, 4, 8, most, most, most, 0]


def test_one_whose_room_is_gone_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "NUM_LOOKS", 2**31)
    assert started_by(Late(num_late=2), tmp_path).killed == [NAME] * 2


@pytest.mark.parametrize(
    ("fails_at", "starts"),
    [(1, True), (3, True), (5, False)],
    ids=["before it is given up", "before it is made anew", "once it sits"],
)
def test_none_is_left_over_where_the_head_does_not_answer(tmp_path: Path, fails_at: int, starts: bool) -> None:
    async def act() -> None:
        hands = Headless(fails_at)
        fleet = RayFleet(KEY, 1, cast(Hands, hands), launched(tmp_path, EITHER))
        fleet.start("1.1", frozenset())
        async with asyncio.timeout(10):
            await fleet.news.wait()
            while hands.num_made > len(hands.killed) + len(hands.started):
                await asyncio.sleep(0)
        assert (hands.started, fleet.can_poll("1.1")) == ([NAME] * starts, starts)
        fleet.abandon()

    asyncio.run(act())


def test_one_that_cannot_be_made_anew_is_killed(tmp_path: Path) -> None:
    async def act() -> None:
        hands = Stuck(num_late=1)
        with pytest.raises(RpcError):
            await settling.settle(
                cast(Hands, hands),
                NAME,
                lambda: hands.create(launched(tmp_path, EITHER), NAME, frozenset(), must_fit=False),
                lambda: False,
            )
        assert hands.killed == [NAME]

    asyncio.run(act())


def started_by(hands: Crowded, folder: Path) -> Crowded:
    """The hands, once they have started the worker."""

    async def act() -> None:
        fleet = RayFleet(KEY, 1, cast(Hands, hands), launched(folder, EITHER))
        fleet.start("1.1", frozenset())
        async with asyncio.timeout(10):
            await fleet.news.wait()
        assert hands.started == [NAME]
        fleet.abandon()

    asyncio.run(act())
    return hands


def test_one_that_is_dead_is_not_made_anew_but_asked_why(tmp_path: Path) -> None:
    async def act() -> None:
        hands = Crowded(room_at=1, num_late=1, kills=True)
        fleet = RayFleet(KEY, 1, cast(Hands, hands), launched(tmp_path, EITHER))
        fleet.start("1.1", frozenset())
        async with asyncio.timeout(10):
            await fleet.news.wait()
        assert (hands.started, hands.killed) == ([NAME], [])
        fleet.abandon()

    asyncio.run(act())


def test_one_that_waits_for_room_is_lost_once_it_is_taken_back(tmp_path: Path) -> None:
    async def act() -> None:
        hands = Crowded(room_at=2**31)
        fleet = RayFleet(KEY, 1, cast(Hands, hands), launched(tmp_path, EITHER))
        fleet.start("1.1", frozenset())
        async with asyncio.timeout(10):
            while hands.num_looks < 2:
                await asyncio.sleep(0)
            fleet.stop("1.1", save=True)
            await fleet.news.wait()
        assert fleet.heard().lost == {"1.1": "it could not be started: there was no room for it yet"}
        fleet.abandon()

    asyncio.run(act())

"""Where a worker's process comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from workers.assignment import SWEEP_LABEL, Storage
from workers.control import placing
from workers.control.launch import Launch
from workers.control.names import SpareName
from workers.spec import parse_job_spec

SPARE = SpareName(node_id="n", tag="1")
NOWHERE = frozenset[str]()


class Pool:
    """Hands whose pool has ``waiting``, with room for it from look number ``room_at`` on."""

    def __init__(self, waiting: list[SpareName], room_at: int) -> None:
        self._waiting, self._room_at, self.num_looks = waiting, room_at, 0
        self.killed: list[str] = []
        self.is_silent = False

    async def waiting(self, pool: str, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        if not room:
            return self._waiting
        self.num_looks += 1
        return self._waiting if self.num_looks >= self._room_at else []

    async def spare(self, spare: SpareName) -> str:
        return "waited"

    async def call_up(self, actor: Any, room: Mapping[str, float], name: str) -> bool:
        while self.is_silent:
            await asyncio.Event().wait()
        return True

    async def kill(self, actor: str) -> None:
        self.killed.append(actor)
        self._waiting = []

    async def nearest(self, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        return []

    async def another(self, room: Mapping[str, float], avoids: frozenset[str]) -> None:
        return None

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> str:
        return "new"


@pytest.mark.parametrize(
    ("waiting", "room_at", "expected", "num_looks"),
    [([SPARE], 1, "waited", 1), ([SPARE], 3, "waited", 3), ([], 1, "new", 1)],
)
def test_a_trial_waits_a_moment_for_the_room_of_a_process_that_waits_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    waiting: list[SpareName],
    room_at: int,
    expected: str,
    num_looks: int,
) -> None:
    monkeypatch.setattr(placing, "ROOM_S", 60.0)
    hands: Any = Pool(waiting, room_at)
    assert asyncio.run(placing.place(hands, a_trial(tmp_path), "worker", NOWHERE)) == expected
    assert hands.num_looks == num_looks


def test_a_process_that_did_not_answer_its_call_in_time_is_not_left_to_heed_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "READY_S", 0.05)
    hands: Any = Pool([SPARE], 1)
    hands.is_silent = True
    assert asyncio.run(placing.place(hands, a_trial(tmp_path), "worker", NOWHERE)) == "new"
    assert hands.killed == ["waited"]


def a_trial(tmp_path: Path) -> Launch:
    document = {"name": "j", "entrypoint": "workers.recipes.digits:build", "steps": 1, "labels": {}}
    spec = parse_job_spec(document).model_copy(update={"labels": {SWEEP_LABEL: "s"}})
    return Launch(spec=spec, storage=Storage(checkpoints=str(tmp_path), output=str(tmp_path)), scratch=str(tmp_path))

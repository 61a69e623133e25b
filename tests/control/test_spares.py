"""Which spares are begun and which end, as the roster tells of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from workers.control import spares as module
from workers.control.names import SpareName, pool_name
from workers.control.spares import Spares

HERE, ELSEWHERE = "a" * 56, "b" * 56


class Roster:
    """Spares by what they were taken by; who takes one is never too late."""

    namespace = "namespace"

    def __init__(self, taken: dict[SpareName, str]) -> None:
        self._taken = taken

    def taken(self) -> Mapping[SpareName, str]:
        return dict(self._taken)

    def take(self, spare: SpareName, name: str) -> bool:
        self._taken[spare] = name
        return True

    def spare(self, spare: SpareName) -> Any:
        return spare

    def forget_dead(self) -> None:
        pass


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[SpareName]:
    found: list[SpareName] = []
    monkeypatch.setattr(module.ray, "kill", found.append)
    monkeypatch.setattr(module.Spares, "_renew", lambda self, spares: None)
    return found


def test_one_that_was_taken_to_be_ended_and_lives_all_the_same_is_ended(killed: list[SpareName]) -> None:
    """Who took it died before the kill."""
    left, worker, pooled, wanted = (SpareName(node_id=HERE, tag=tag) for tag in ("0", "1", "2", "3"))
    taken = {left: "ended", worker: "job_1/1/1.0", pooled: pool_name("pool"), wanted: ""}
    Spares(Roster(taken)).keep({HERE: 2})  # type: ignore[arg-type]  # as much of one as is asked here
    assert killed == [left]


def test_those_on_nodes_where_none_are_wanted_end_unless_somebody_took_them(killed: list[SpareName]) -> None:
    free, worker = SpareName(node_id=ELSEWHERE, tag="0"), SpareName(node_id=ELSEWHERE, tag="1")
    roster = Roster({free: "", worker: "job_1/1/1.0"})
    Spares(roster).keep({})  # type: ignore[arg-type]  # likewise
    assert killed == [free]
    assert roster.taken()[free] == "ended"


class DeathError(Exception):
    """Whoever keeps the spares dies."""


class DeadlyHead(Roster):
    """Spares that live at Ray's head, and whoever keeps them dies after so many effects."""

    def __init__(self, taken: dict[SpareName, str], num_effects: int) -> None:
        super().__init__(taken)
        self.num_left = num_effects

    def take(self, spare: SpareName, name: str) -> bool:
        is_first = not self._taken[spare]
        self._taken[spare] = self._taken[spare] or name
        self._pass()
        return is_first

    def kill(self, spare: SpareName) -> None:
        del self._taken[spare]
        self._pass()

    def begin(self, namespace: str, node_id: str, *, is_ready: bool) -> None:
        self._taken[SpareName(node_id=node_id, tag=f"new-{len(self._taken)}")] = ""
        self._pass()

    def _pass(self) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            raise DeathError


NUM_EFFECTS = 6
"""Two are taken and killed, one is killed that was taken before, and one is begun."""


@pytest.mark.parametrize("num_effects", range(1, NUM_EFFECTS + 2))
def test_what_is_half_done_after_any_effect_is_done_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, num_effects: int
) -> None:
    left, others = SpareName(node_id=HERE, tag="0"), [SpareName(node_id=ELSEWHERE, tag=tag) for tag in ("1", "2")]
    head = DeadlyHead({left: "ended", **dict.fromkeys(others, "")}, num_effects)
    monkeypatch.setattr(module.ray, "kill", head.kill)
    monkeypatch.setattr(module, "begin_spare", head.begin)
    monkeypatch.setattr(module.Spares, "_renew", lambda self, spares: None)
    with contextlib.suppress(DeathError):
        Spares(head).keep({HERE: 1})  # type: ignore[arg-type]  # likewise
    assert (head.num_left == 0) == (num_effects <= NUM_EFFECTS), "it died elsewhere than it should"
    Spares(head).keep({HERE: 1})  # type: ignore[arg-type]  # likewise
    assert [(spare.node_id, name) for spare, name in head.taken().items()] == [(HERE, "")]

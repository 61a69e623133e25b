"""Which spares are begun and which end, as the roster tells of them."""

from __future__ import annotations

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

"""A connection that is gone, of which gloo did not tell who waits."""

from __future__ import annotations

import pytest

from tests.training.fake_store import FakeStore
from tests.training.test_traffic import GROUP, pair, place_of
from tests.training.test_world import seat
from workers.training.traffic import Traffic
from workers.training.world import Transfer, World, WorldError


class NeverEnds:
    """An operation that gloo does not tell that a connection it needs is gone."""

    num_waits = 0

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: object) -> None:
        self.num_waits += 1
        raise RuntimeError("Operation timed out!")


@pytest.mark.parametrize("closes", ["its peer", "this rank"])
def test_an_operation_fails_that_a_slice_without_a_connection_did_not_end(closes: str) -> None:
    world, work = World(seat(0, 2, GROUP), FakeStore()), NeverEnds()
    mine, theirs = pair()
    world._traffic = Traffic([place_of(mine)])
    assert world.is_whole()
    (theirs if closes == "its peer" else mine).close()
    with mine, theirs, pytest.raises(WorldError, match="broke at rank 0: a connection to another rank is gone"):
        Transfer(world, work).wait()  # type: ignore[arg-type]  # the part of Work it uses
    assert work.num_waits == 2

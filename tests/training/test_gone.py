"""A connection that is gone, of which gloo did not tell who waits."""

from __future__ import annotations

import os
import resource
import socket

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


class ComesSlowly:
    """An operation that takes five slices, in each of which ``peer`` sends something."""

    num_waits = 0

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: object) -> None:
        self.num_waits += 1
        self._peer.sendall(b"some")
        if self.num_waits < 5:
            raise RuntimeError("Operation timed out!")


class EndsAsItIsLookedAt(NeverEnds):
    """An operation that completes while the connections are looked at for the second time."""

    num_questions = 0

    def is_completed(self) -> bool:
        self.num_questions += 1
        return self.num_questions >= 3

    def wait(self, timeout: object) -> None:
        if self.num_questions < 3:
            super().wait(timeout)


@pytest.mark.parametrize("closes", ["its peer", "this rank"])
def test_an_operation_fails_that_a_slice_without_a_connection_did_not_end(closes: str) -> None:
    world, work = World(seat(0, 2, GROUP), FakeStore()), NeverEnds()
    mine, theirs = pair()
    world.traffic = Traffic([place_of(mine)])
    assert world.gone_at() is None
    (theirs if closes == "its peer" else mine).close()
    with mine, theirs, pytest.raises(WorldError, match="broke at rank 0: a connection to another rank is gone"):
        Transfer(world, work).wait()  # type: ignore[arg-type]  # the part of Work it uses
    assert work.num_waits == 2


def test_who_parted_after_giving_all_it_had_does_not_end_what_comes_slowly_from_another() -> None:
    world = World(seat(0, 3, GROUP), FakeStore())
    (mine, theirs), (other, parted) = pair(), pair()
    world.traffic = Traffic([place_of(mine), place_of(other)], 2)
    parted.close()
    with mine, theirs, other:
        Transfer(world, ComesSlowly(theirs)).wait()  # type: ignore[arg-type]


def test_an_operation_that_ends_as_its_connections_are_looked_at_has_not_failed() -> None:
    world = World(seat(0, 2, GROUP), FakeStore())
    mine, theirs = pair()
    world.traffic = Traffic([place_of(mine)])
    theirs.close()
    with mine:
        Transfer(world, EndsAsItIsLookedAt()).wait()  # type: ignore[arg-type]


def test_a_stranger_that_knocked_as_the_group_formed_is_not_missed() -> None:
    (mine, theirs), (knocked, stranger) = pair(), pair()
    traffic = Traffic([place_of(mine), place_of(knocked)], 1)
    with mine, theirs:
        knocked.close()
        stranger.close()
        traffic.sent_bytes()
        assert traffic.gone_at is None


def test_no_connection_is_taken_for_gone_where_no_descriptor_is_left_to_look_through() -> None:
    mine, theirs = pair()
    traffic = Traffic([place_of(mine)])
    with mine, theirs:
        theirs.sendall(b"some")
        mine.sendall(b"more!")
        assert traffic.sent_bytes() == 5
        free, limits = os.dup(mine.fileno()), resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            assert (traffic.sent_bytes(), traffic.gone_at) == (5, None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

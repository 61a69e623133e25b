"""What of a rank's bytes goes to other racks, told apart from the rest."""

from __future__ import annotations

import pytest

from tests.forking import import_before_forking
from tests.training.fake_store import FakeStore
from tests.training.test_compression import Job, members, over_racks
from tests.training.test_traffic import GROUP, HEADERS, NUMEL, OVER_RACKS, in_processes, sent_by
from tests.training.test_world import seat
from workers.racks import Topology
from workers.training import round
from workers.training.across import told_apart
from workers.training.calls import StoreCalls
from workers.training.exchange.registry import scheme_over_racks
from workers.training.exchange.residual import Residual
from workers.training.world import World

import_before_forking(__name__)

CROSSED = {(0, 0, 1, 1, 1): [0.5] * 4 + [0.0], (0, 0, 1, 1, 2, 2): [2 * 2 / 3 * 0.5] * 6}
"""Of fp32 gradients, what a shard's owner sends to its peers."""


def crossed(world: World, calls: StoreCalls) -> int:
    """What a round of fp32 over racks sends to other racks."""
    [racks] = [racks for racks in OVER_RACKS if len(racks) == world.size]
    across = told_apart(world, racks)
    assert across is not None
    before = across.sent_bytes()
    sent_by(scheme_over_racks("none", "none", racks, world.rank, Residual()), world)
    return across.sent_bytes() - before


@pytest.mark.parametrize("racks", OVER_RACKS, ids=str)
def test_what_goes_to_other_racks_is_told_apart(racks: tuple[int, ...]) -> None:
    sent = in_processes(len(racks), crossed)
    assert [num_bytes / NUMEL / 4 for num_bytes in sent] == pytest.approx(CROSSED[racks], rel=0.02, abs=HEADERS)


@pytest.mark.parametrize("racks", [(0, 0, 0), (0, 1, 2)])
def test_where_racks_are_one_level_nothing_is_told_apart(racks: tuple[int, ...]) -> None:
    assert told_apart(World(seat(0, 3, GROUP), FakeStore()), racks) is None


@pytest.mark.parametrize(("racks", "is_told"), [((0, 0, 1), True), ((0, 1, 2), False)])
def test_rounds_tell_what_went_to_other_racks_where_there_are_two_levels(
    racks: tuple[int, ...], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round, "survey", lambda world, labels: Topology(racks=racks))
    job = Job()
    with job.group as group:
        workers = group.start(3)
        group.train(members(workers), exchange=over_racks("none", "int4"))
        group.await_done(workers)
        told = [record.values for _, record in sorted(group.records.items())]
    assert told
    assert [0.0 < values.get("wire_bytes_across", 0.0) < values["wire_bytes"] for values in told] == [is_told] * len(
        told
    )

"""The API dies before and after it writes a word on a node; told again, the word is there, and it was said once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from service.store.nodes import NodeStore
from service.store.port import ReconcilerStore
from tests.faults.caller import Caller, caller
from tests.faults.crash_points import When, methods_of

__all__ = ["caller"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {"cluster_events"}
DUTIES: Mapping[str, str] = {"drain": "drained", "quarantine": "quarantined", "uncordon": "active"}


def test_every_write_of_nodes_is_a_crash_point() -> None:
    assert set(methods_of(NodeStore)) - set(methods_of(ReconcilerStore)) - READS == {"mark_node"}


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("verb", DUTIES)
async def test_an_api_that_dies_at_a_word_on_a_node_is_told_again_and_it_is_said_once(
    caller: Caller, verb: str, when: When
) -> None:
    await caller.until("/cluster", lambda cluster: cluster["nodes"])
    earlier = ["drain"] if verb == "uncordon" else []
    for word in earlier:
        await caller.do(f"/cluster/nodes/n/{word}")
    caller.arm("nodes", "mark_node", when)
    cluster = await caller.do(f"/cluster/nodes/n/{verb}", json={"reason": "a new disk"})
    assert [(node["duty"], node["duty_reason"]) for node in cluster["nodes"]] == [(DUTIES[verb], "a new disk")]
    assert len(cluster["events"]) == len(earlier) + 1
    await caller.judged()

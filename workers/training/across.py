"""The bytes that a rank sends to other racks, by the kernel's counters of the connections that lead there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from workers.training.traffic import Connection, Traffic
from workers.training.world import World

MARK_BYTES = 2 * 2**10
"""Much more than what gloo sends of its own to a rank that gets nothing, and little where many ranks share a link."""


class Across:
    """Those of a group's connections that lead to other racks."""

    def __init__(self, traffic: Traffic, connections: Collection[Connection]) -> None:
        self._traffic, self._connections = traffic, connections

    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to other racks so far; counts and is called as ``World.sent_bytes``."""
        sent = self._traffic.by_connection()
        return sum(sent[connection] for connection in self._connections)


def told_apart(world: World, racks: Sequence[int]) -> Across | None:
    """Find the connections to other racks, by sending there; all ranks must call it, with the same ``racks``.

    A connection does not tell which rank it leads to: its other end may have any port, and several ranks one machine.
    None where racks are one level, as then nothing is sent on two, and where nobody counts bytes. Raises WorldError.
    """
    if not world.is_gloo or not 0 < max(racks) < len(racks) - 1:
        return None
    before = {} if world.traffic is None else world.traffic.by_connection()
    rows = [int(rack != racks[world.rank]) for rack in racks]
    mark, place = (torch.zeros(sum(rows), MARK_BYTES, dtype=torch.uint8) for _ in range(2))
    world.all_to_all(place, mark, rows, rows).wait()
    if world.traffic is None:
        return None
    after = world.traffic.by_connection()
    return Across(world.traffic, [each for each in after if after[each] - before[each] >= MARK_BYTES])

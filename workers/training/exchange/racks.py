"""What each rank does in an exchange over racks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """One rank's view of the racks.

    ``mates`` are the ranks of its rack, ``owners`` the first of them: as many in each rack as the smallest has ranks,
    so that every shard has one owner a rack. ``shard`` is the one that this rank owns, None where it owns none: a
    larger rack's other ranks only give their part and get the sum. ``peers`` own the same shard, one a rack, in the
    racks' order; they are none where ``shard`` is None. ``rack`` is the number of this rank's rack.
    """

    rank: int
    size: int
    rack: int
    num_racks: int
    mates: tuple[int, ...]
    owners: tuple[int, ...]
    shard: int | None
    peers: tuple[int, ...]

    def rows(self, ranks: Collection[int], num: int = 1) -> list[int]:
        """How many rows each rank of the world has: ``num`` those named, the others none."""
        return [num if rank in ranks else 0 for rank in range(self.size)]

    def others(self, ranks: Collection[int]) -> tuple[int, ...]:
        """These ranks without this one."""
        return tuple(rank for rank in ranks if rank != self.rank)


def seating(racks: Sequence[int], rank: int) -> Seating:
    """The view of ``rank``, where ``racks`` has the number of every rank's rack, from 0 on."""
    num_racks = max(racks) + 1
    members = [tuple(r for r, rack in enumerate(racks) if rack == number) for number in range(num_racks)]
    num_shards = min(len(ranks) for ranks in members)
    mates = members[racks[rank]]
    place = mates.index(rank)
    owns = place < num_shards
    return Seating(
        rank=rank,
        size=len(racks),
        rack=racks[rank],
        num_racks=num_racks,
        mates=mates,
        owners=mates[:num_shards],
        shard=place if owns else None,
        peers=tuple(ranks[place] for ranks in members) if owns else (),
    )

"""Gradients over racks: each rack sums its own, racks exchange the sums, and each rack gives them to its ranks.

The slow link carries one sum a rack, by a codec of its own. A rank gives each shard to the rank of its rack that owns
it, the owners of one shard add theirs up over the racks, and each gives the sum to its rack (2-D all-reduce; with
codecs as in qgZ of ZeRO++, arXiv 2306.10209). Two racks' owners send each other all of a shard; of more, each sums one
chunk and gives it to the others, so that what the link carries does not grow with the racks. All of it are all-to-alls
of the one group, in which most ranks have nothing for most.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

import torch

from workers.training.exchange.codecs import Codec, Exact
from workers.training.exchange.coding import Coding
from workers.training.exchange.racks import Seating
from workers.training.exchange.residual import Residual
from workers.training.exchange.rows import Rows
from workers.training.exchange.schemes import Convoy, InFlight, Summed
from workers.training.exchange.shards import Bucket, Levels, Shards
from workers.training.state import StepState
from workers.training.world import Transfer, World


class _Hops:
    """A piece under way: each of ``hops`` is begun when the one before it has ended."""

    def __init__(self, hops: Generator[Transfer]) -> None:
        self._hops = hops
        self._transfer: Transfer | None = next(hops)

    def forward(self) -> bool:
        if self._transfer is not None:
            self._transfer.wait()
            self._transfer = next(self._hops, None)
        return self._transfer is not None

    def wait(self) -> None:
        while self.forward():
            pass


class _Pieces:
    """A bucket under way."""

    def __init__(self, bucket: Bucket, coding: Coding, hops: Sequence[_Hops]) -> None:
        self._bucket, self._coding, self._convoy = bucket, coding, Convoy(hops)

    def forward(self) -> bool:
        return self._convoy.forward()

    def wait(self) -> None:
        self._convoy.wait()
        with self._coding.decode:
            self._bucket.store()


class Hierarchical:
    """A ``Scheme`` over two racks or more, with error feedback where a level's codec has an error worth keeping.

    ``back`` is the codec of the sums that owners give to their racks, ``inside`` where none is given.
    """

    blurs_alone = False
    staged: Sequence[StepState] = ()

    def __init__(
        self, inside: Codec, across: Codec, seating: Seating, residual: Residual, back: Codec | None = None
    ) -> None:
        self.name = f"{inside.name} across {across.name}"
        self.blurs_norm = inside.blurs_norm or across.blurs_norm
        self._levels = Levels(inside=inside, across=across, back=back or inside, seating=seating)
        self._seating, self._residual, self.coding = seating, residual, Coding()
        self._is_exact = isinstance(inside, Exact) and isinstance(across, Exact)
        self._has_error = inside.has_error or across.has_error
        self._buckets: dict[int, Bucket] = {}

    def is_relayed(self, num_ranks: int) -> bool:
        return num_ranks > 1

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        return

    def begin(self, round: int) -> None:
        return

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        if self._is_flat(flat, num_gradients):
            self._residual.add_to(number, flat[:num_gradients])
            self._residual.stage_nothing(number)
            transfer = world.all_reduce(flat)
            return None if transfer is None else Summed(transfer)
        bucket = self._buckets.get(number)
        if bucket is None or bucket.flat is not flat:
            bucket = self._buckets[number] = Bucket(self._levels, flat, num_gradients)
        with self.coding.encode:
            bucket.load()
            self._residual.add_to(number, bucket.gradients)
            if self._has_error:
                bucket.keep_errors(self._residual.place(number, bucket.values))
            else:
                self._residual.stage_nothing(number)
        return _Pieces(bucket, self.coding, [_Hops(self._hops(piece, world)) for piece in bucket.pieces])

    def _is_flat(self, flat: torch.Tensor, num_gradients: int) -> bool:
        """Whether a bucket goes by all-reduce: without gradients, or of more digits than fp32 where all are to stay."""
        return num_gradients == 0 or (self._is_exact and flat.dtype is torch.float64)

    def _hops(self, shards: Shards, world: World) -> Generator[Transfer]:
        """All of a piece's way. A rank that owns no shard has as many hops, with nothing in those across."""
        yield self._gather_parts(shards, world)
        if self._seating.shard is not None:
            with self.coding.decode:
                shards.add_up([(shards.parts_in, row) for row in range(len(self._seating.mates))], shards.shard_1N())
                torch.sum(shards.parts_in.tails_RT, dim=0, out=shards.tail)
            with self.coding.encode:
                shards.racks_out.put_tail(shards.tail)
                shards.encode_own(shards.racks_out, shards.shard_1N(), owes=True)
        if self._levels.num_chunks == 1:
            yield from self._exchange_shards(shards, world)
        else:
            yield from self._exchange_chunks(shards, world)
        yield self._give_sums(shards, world)
        with self.coding.decode:
            for row, owner in enumerate(self._seating.others(self._seating.owners)):
                shards.sums_in.decode(row, shards.shard_1N(self._seating.owners.index(owner)))
            if self._seating.shard is None:
                shards.tail.copy_(shards.sums_in.tails_RT[0])

    def _gather_parts(self, shards: Shards, world: World) -> Transfer:
        """Every rank's part of a shard to the shard's owner in its rack."""
        seating, inside = self._seating, self._levels.inside
        with self.coding.encode:
            if shards.error_SN is not None and not inside.has_error:
                shards.error_SN.zero_()
            shards.parts_out.put_tail(shards.tail)
            shards.parts_out.encode(shards.values_SN, shards.error_SN if inside.has_error else None)
        received = () if seating.shard is None else seating.mates
        return world.all_to_all(
            shards.parts_in.bytes_RB, shards.parts_out.bytes_RB, seating.rows(received), seating.rows(seating.owners)
        )

    def _exchange_shards(self, shards: Shards, world: World) -> Generator[Transfer]:
        """Both racks' owners of a shard get all of it; of two numbers either order gives the same sum."""
        seating = self._seating
        other = seating.others(seating.peers)
        yield self._give(shards.racks_out, other, shards.racks_in, other, world)
        if seating.shard is not None:
            with self.coding.decode:
                shards.add_up([(shards.racks_out, 0), (shards.racks_in, 0)], shards.shard_1N())
                shards.tail.add_(shards.racks_in.tails_RT[0])

    def _exchange_chunks(self, shards: Shards, world: World) -> Generator[Transfer]:
        """Each rack's owner of a shard sums one chunk of it, and what it leaves out of the sum it owes as well."""
        seating, peers = self._seating, self._seating.peers
        to_each = seating.rows(peers)
        yield world.all_to_all(shards.racks_in.bytes_RB, shards.racks_out.bytes_RB, to_each, to_each)
        if seating.shard is not None:
            chunk_1N = shards.chunk_1N(seating.rack)
            with self.coding.decode:
                shards.add_up([(shards.racks_in, row) for row in range(len(peers))], chunk_1N)
                torch.sum(shards.racks_in.tails_RT, dim=0, out=shards.tail)
            with self.coding.encode:
                shards.encode_own(shards.chunks_out, chunk_1N, owes=True)
            with self.coding.decode:
                shards.chunks_out.decode(0, chunk_1N)
        others = seating.others(peers)
        yield self._give(shards.chunks_out, others, shards.chunks_in, others, world)
        with self.coding.decode:
            for row, peer in enumerate(others):
                shards.chunks_in.decode(row, shards.chunk_1N(peers.index(peer)))

    def _give_sums(self, shards: Shards, world: World) -> Transfer:
        """An owner's sum to its rack. All racks' owners leave the same out of it: the first rack's owes that."""
        seating = self._seating
        takers: Collection[int] = ()
        if seating.shard is not None:
            takers = seating.others(seating.mates)
            with self.coding.encode:
                shards.sums_out.put_tail(shards.tail)
                shards.encode_own(shards.sums_out, shards.shard_1N(), owes=seating.rack == 0)
            with self.coding.decode:
                shards.sums_out.decode(0, shards.shard_1N())  # as the others will read it
        return self._give(shards.sums_out, takers, shards.sums_in, seating.others(seating.owners), world)

    def _give(self, own: Rows, takers: Collection[int], place: Rows, givers: Collection[int], world: World) -> Transfer:
        """Begin to send this rank's one row to each taker, and to collect a row of each giver."""
        sent_RB = own.bytes_RB[:1].expand(len(takers), -1).contiguous()
        rows = self._seating.rows
        return world.all_to_all(place.bytes_RB, sent_RB, rows(givers), rows(takers))

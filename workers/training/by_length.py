"""A batch of samples of unequal lengths, cut into micro-batches that waste little padding and shared by ranks.

Pure: lengths and weights in, positions out, the same on every rank. A micro-batch is padded to its longest sample, so
its cost is count * longest tokens. Samples are sorted by length, neighbours go together, and where to cut is the
cheapest way through all cuts if each forward pass costs some tokens by itself. Micro-batches are then dealt to the
ranks, the dearest first (Graham 1969, SIAM J. Appl. Math. 17, "Bounds on multiprocessing timing anomalies"), and
what is uneven still is levelled by giving parts of them away.

Shapes: N samples of the batch, J places where it may be cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.training.bounds import Bounds

PASS_SHARE = 1 / 64
"""What a forward pass costs by itself, as a share of the largest that there may be.

Log-normal lengths (sigma 0.5 to 1, 16 to 512 samples, 2 ranks, no other bound) come to 90 to 98 % useful tokens with
it, in 9 to 17 passes over both; with 1/32 to 87 to 97 %, in 7 to 13.
"""

MAX_CUTS = 64
"""Parts into which a batch may be cut: the search takes time in their square (all of it 0.2 to 0.5 ms at 64)."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """[begin, end) of the samples sorted from long to short."""

    begin: int
    end: int


def deal_by_length(
    lengths_N: NDArray[np.int64], weights: Sequence[float], bounds: Bounds
) -> list[list[NDArray[np.int64]]]:
    """The micro-batches of each rank: positions in ``lengths_N``, each of them once, from the longest to the shortest.

    ``lengths_N`` are tokens, above 0 and none above ``bounds.max_tokens``; ``weights`` are by rank, one of them above
    0. The costs of ranks come in proportion to the weights as far as samples can be divided; a weight of 0 gets
    nothing, and so may a rank of a batch that has fewer samples than ranks.
    """
    order_N = np.argsort(-lengths_N, kind="stable")
    sorted_N = lengths_N[order_N]
    num_active = sum(weight > 0 for weight in weights)
    share = int(sorted_N.sum()) / num_active
    capacity = share if bounds.max_tokens is None else min(share, bounds.max_tokens)
    hands = _Hands(sorted_N, weights, capacity * PASS_SHARE)
    pieces = [
        part for piece in _cheapest(sorted_N, hands.pass_cost, bounds) for part in _fitting(piece, sorted_N, bounds)
    ]
    hands.deal(pieces)
    hands.level()
    return [[order_N[piece.begin : piece.end] for piece in sorted(own, key=lambda p: p.begin)] for own in hands.held]


def rejoined(
    own: Sequence[NDArray[np.int64]], lengths_N: NDArray[np.int64], share: float, bounds: Bounds
) -> list[NDArray[np.int64]]:
    """One rank's micro-batches, cut anew as if a pass cost ``share`` of the largest there may be by itself."""
    positions_M = np.concatenate(own)
    sorted_M = lengths_N[positions_M]
    capacity = int(sorted_M.sum()) if bounds.max_tokens is None else min(int(sorted_M.sum()), bounds.max_tokens)
    pieces = _cheapest(sorted_M, capacity * share, bounds)
    return [positions_M[p.begin : p.end] for piece in pieces for p in _fitting(piece, sorted_M, bounds)]


def _cheapest(sorted_N: NDArray[np.int64], pass_cost: float, bounds: Bounds) -> list[_Piece]:
    """The pieces whose padded tokens and passes cost least together; one may take several passes to be in bounds."""
    cuts_J = _places(sorted_N)
    firsts, num_samples = cuts_J[:-1], cuts_J[1:][None, :] - cuts_J[:-1][:, None]
    longest = sorted_N[firsts][:, None]
    padded = num_samples * longest
    num_passes = np.ones_like(padded, dtype=np.float64)
    if bounds.max_tokens is not None:
        num_passes = np.maximum(num_passes, np.ceil(num_samples / (bounds.max_tokens // longest)))
    if bounds.max_samples is not None:
        num_passes = np.maximum(num_passes, np.ceil(num_samples / bounds.max_samples))
    cost = padded + pass_cost * num_passes
    best, came_from = np.zeros(len(cuts_J)), np.zeros(len(cuts_J), dtype=np.int64)
    for j in range(1, len(cuts_J)):
        upto_j = best[:j] + cost[:j, j - 1]
        came_from[j] = upto_j.argmin()
        best[j] = upto_j[came_from[j]]
    pieces, j = [], len(cuts_J) - 1
    while j > 0:
        i = int(came_from[j])
        pieces.append(_Piece(int(cuts_J[i]), int(cuts_J[j])))
        j = i
    return pieces


def _places(sorted_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the sorted samples may be cut: anywhere, or at about equal steps in tokens where they are many."""
    if len(sorted_N) <= MAX_CUTS:
        return np.arange(len(sorted_N) + 1)
    tokens_N = np.cumsum(sorted_N)
    steps = np.searchsorted(tokens_N, np.linspace(0, tokens_N[-1], MAX_CUTS + 1)[1:-1]) + 1
    return np.unique(np.concatenate([[0], steps, [len(sorted_N)]]))


def _fitting(piece: _Piece, sorted_N: NDArray[np.int64], bounds: Bounds) -> Iterator[_Piece]:
    begin = piece.begin
    while begin < piece.end:
        end = begin + bounds.fitting(sorted_N[begin : piece.end])
        yield _Piece(begin, end)
        begin = end


class _Hands:
    """Who holds which pieces, and what they cost, in tokens."""

    def __init__(self, sorted_N: NDArray[np.int64], weights: Sequence[float], pass_cost: float) -> None:
        self._sorted_N, self.pass_cost = sorted_N, pass_cost
        self._weights = np.array(weights, dtype=np.float64)
        self._active = np.flatnonzero(self._weights > 0)
        self.held: list[list[_Piece]] = [[] for _ in weights]
        self._loads = np.zeros(len(weights))

    def deal(self, pieces: Sequence[_Piece]) -> None:
        """Each piece, from the dearest on, to whoever is done with it first."""
        for cost, piece in sorted(((self._cost(p), p) for p in pieces), key=lambda c: (-c[0], c[1].begin)):
            done = (self._loads[self._active] + cost) / self._weights[self._active]
            self._give(int(self._active[done.argmin()]), piece)

    def level(self) -> None:
        """Fill up who is done first from who is done last, while that makes the last one earlier.

        Samples of one length are a single piece until here: no cut saves padding.
        """
        for _ in range(2 * len(self._active)):
            done = self._loads[self._active] / self._weights[self._active]
            last, first = int(self._active[done.argmax()]), int(self._active[done.argmin()])
            move = self._best_move(last, first)
            if move is None:
                return
            piece, num_moved = move
            self._take(last, piece)
            middle = piece.end - num_moved
            if middle > piece.begin:
                self._give(last, _Piece(piece.begin, middle))
            self._give(first, _Piece(middle, piece.end))

    def _best_move(self, last: int, first: int) -> tuple[_Piece, int] | None:
        """The piece, and how many of its shortest samples to move, that bring ``first`` closest to an even share."""
        before, even = self._loads[last] / self._weights[last], self._loads.sum() / self._weights.sum()
        best, least_off = None, np.inf
        for piece in self.held[last]:
            num_moved = np.arange(1, piece.end - piece.begin + 1)
            moved = num_moved * self._sorted_N[piece.end - num_moved] + self.pass_cost
            freed = num_moved * self._sorted_N[piece.begin].astype(np.float64)
            freed[-1] += self.pass_cost
            last_done = (self._loads[last] - freed) / self._weights[last]
            first_done = (self._loads[first] + moved) / self._weights[first]
            off = np.where(np.maximum(last_done, first_done) < before, np.abs(first_done - even), np.inf)
            at = int(off.argmin())
            if off[at] < least_off:
                least_off, best = off[at], (piece, int(num_moved[at]))
        return best

    def _cost(self, piece: _Piece) -> float:
        return (piece.end - piece.begin) * int(self._sorted_N[piece.begin]) + self.pass_cost

    def _give(self, rank: int, piece: _Piece) -> None:
        self.held[rank].append(piece)
        self._loads[rank] += self._cost(piece)

    def _take(self, rank: int, piece: _Piece) -> None:
        self.held[rank].remove(piece)
        self._loads[rank] -= self._cost(piece)

"""Which size of a forward pass is to be measured next, by what those took that were. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

JUMP = 3
"""Doublings skipped at once while a forward pass of twice the samples takes next to no longer."""

LEVEL = 1.08
_IDLE = 1.3
_CLOSE = 1.15
_OPEN = 3.0
"""A size so many times slower than the best leaves nothing to be found among the two above it."""

_NUM_REPEATS = 4
_NUM_DOUBTED = 2
_NUM_QUICK = 8
_QUICK_S = 0.005
"""Rounds that follow one another so soon are measured more often: a busy machine holds up one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One size: ``seconds`` a sample of each measured round, the first round left out; ``peak_bytes`` held at most.

    ``is_warm``: for want of a measured round they are of single passes, which leave out what a round takes besides.
    """

    seconds: tuple[float, ...] = ()
    peak_bytes: int = 0
    is_warm: bool = False

    @property
    def num_rounds(self) -> int:
        """Whole rounds that were measured."""
        return 0 if self.is_warm else len(self.seconds)


def least_seconds(trials: Mapping[int, Trial]) -> dict[int, float]:
    """The least seconds a sample by size, ascending: what else the machine did only ever adds."""
    return {size: min(trial.seconds) for size, trial in sorted(trials.items()) if trial.seconds}


class Search:
    """One look, among ascending ``sizes`` for a part of so many samples; ``fits`` tells which may be tried.

    ``round_s`` is what a round took at least, with all that it does besides. ``refused`` are those that would come
    next, but do not fit.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        trials: Mapping[int, Trial],
        part: int,
        fits: Callable[[int], bool],
        round_s: float = 0.0,
    ) -> None:
        self._sizes, self._trials, self._part, self._fits = sizes, trials, part, fits
        self._round_s = round_s
        self._seconds = least_seconds(trials)
        self.refused: list[int] = []

    def following(self) -> int | None:
        """The next size to try, None when enough is known."""
        cold = [size for size, trial in self._trials.items() if not trial.seconds]
        if cold:
            return cold[0]
        seconds = self._seconds
        best = min(seconds, key=lambda s: seconds[s])
        level = [s for s in seconds if s in self._sizes and seconds[s] <= LEVEL * seconds[best]]
        if (untried := self._untried(level) or self._open()) is not None:
            return untried
        return self._doubted(best)

    def _untried(self, level: Sequence[int]) -> int | None:
        """A size beside those that are about the fastest; further up, where larger passes hardly take longer."""
        if not level:
            return None
        high = self._sizes.index(max(level))
        above = list(self._sizes[high + 1 : high + 1 + (JUMP if self._is_idle(self._sizes[high]) else 1)])
        self.refused = [s for s in above[:1] if not self._fits(s)]
        fitting = [s for s in above if self._fits(s)]
        beside = [s for of in reversed(level) for s in _neighbours(of, self._sizes) if self._fits(s)]
        beside = [*fitting[-1:], *fitting[:1], *beside]
        return next((s for s in beside if s not in self._trials), None)

    def _is_idle(self, size: int) -> bool:
        """Whether a pass of ``size`` samples took hardly longer than one of the next smaller size that was tried."""
        seconds = self._seconds
        smaller = [s for s in seconds if s < size]
        if not smaller or size < max(seconds):
            return False
        before = max(smaller)
        return seconds[size] * size <= _IDLE * seconds[before] * before

    def _open(self) -> int | None:
        """A size that was jumped over, above one that is not much slower than the best."""
        seconds = self._seconds
        slowest = _OPEN * min(seconds.values())
        below = [s for s in self._sizes if seconds.get(s, slowest) < slowest and s < max(seconds)]
        above = (size for s in below for size in _neighbours(s, self._sizes)[:1])
        return next((size for size in above if size not in self._trials), None)

    def _doubted(self, best: int) -> int | None:
        """A size that may have lost, or won, by what else the machine did: of it a round more tells most."""
        seconds = self._seconds
        is_quick = max(self._round_s, seconds[best] * self._part) <= _QUICK_S
        close = [s for s in seconds if seconds[s] <= _CLOSE * seconds[best]]
        beside = _neighbours(best, list(seconds))
        if beside and (is_quick or self._trials[best].is_warm):
            beside = [best, *beside]  # what won by single passes has to win by rounds
        rarest = self._rarest(beside, _NUM_QUICK if is_quick else _NUM_DOUBTED)
        if rarest is None and len(close) > 1:
            rarest = self._rarest(close, _NUM_QUICK if is_quick else _NUM_REPEATS)
        return rarest

    def _rarest(self, sizes: Sequence[int], num_rounds: int) -> int | None:
        """The one of these that was measured in the fewest rounds; None where all were in so many."""
        rarest = min(sizes, key=lambda s: (self._trials[s].num_rounds, s), default=None)
        return rarest if rarest is not None and self._trials[rarest].num_rounds < num_rounds else None


def _neighbours(size: int, sizes: Sequence[int]) -> list[int]:
    """The next larger and the next smaller of ascending sizes."""
    at = sizes.index(size)
    return [*sizes[at + 1 : at + 2], *sizes[max(0, at - 1) : at]]

"""How fast one worker is, and whether that has changed all at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from workers.advisors.cost_line import CostLine

SHIFT = 0.20
"""A run of rounds this much slower or faster than those before, of the same part, is out of line."""

NUM_SHIFTED = 3
"""So many of them on end are no accident: what was known before holds no longer."""

NUM_STEADY = 3
"""Runs of one part before another may be called out of line with them."""

LEVEL_FADES = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What is known of a worker; times are in seconds.

    ``level_s`` is what its present part of ``samples`` took lately, by ``num_level`` runs; ``odd_s`` are the newest
    runs where all were out of line the same way. ``num_shifts`` counts how often that was believed.
    """

    line: CostLine = field(default_factory=CostLine)
    samples: int = 0
    level_s: float = 0.0
    num_level: int = 0
    odd_s: tuple[float, ...] = ()
    num_shifts: int = 0

    @property
    def is_steady(self) -> bool:
        """Whether anything is known, and nothing just now out of line with it."""
        return self.num_level > 0 and not self.odd_s

    def seen(self, samples: int, seconds: float) -> Speed:
        """After one more run of rounds with a part of ``samples`` (at least one) that took ``seconds`` each."""
        if samples != self.samples:
            fresh = Speed(line=self._folded().line, samples=samples, num_shifts=self.num_shifts)
            return fresh._with(seconds)
        if self.num_level < NUM_STEADY or abs(seconds - self.level_s) <= SHIFT * self.level_s:
            return self._folded()._with(seconds)
        is_slower = seconds > self.level_s
        known = self if all((odd > self.level_s) == is_slower for odd in self.odd_s) else self._folded()
        odd_s = (*known.odd_s, seconds)
        if len(odd_s) < NUM_SHIFTED:
            return replace(known, odd_s=odd_s)
        return Speed(samples=samples, odd_s=odd_s, num_shifts=self.num_shifts + 1)._folded()

    def _folded(self) -> Speed:
        """With the odd runs counted like any other."""
        known = replace(self, odd_s=())
        for seconds in self.odd_s:
            known = known._with(seconds)
        return known

    def _with(self, seconds: float) -> Speed:
        num_level = self.num_level + 1
        fades = max(LEVEL_FADES, 1 / num_level)
        return replace(
            self,
            line=self.line.seen(self.samples, seconds),
            level_s=self.level_s + fades * (seconds - self.level_s),
            num_level=num_level,
        )

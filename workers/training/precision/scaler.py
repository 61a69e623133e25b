"""Loss scaling for fp16: gradients too small for the format are lifted into its range."""

from __future__ import annotations

from collections.abc import Mapping

INITIAL_SCALE = 2.0**16
MIN_SCALE = 1.0
MAX_SCALE = 2.0**24
GROWTH = 2.0
BACK_OFF = 0.5
GROWTH_INTERVAL = 2000


class LossScaler:
    """A ``StepState``: the scale changes at a commit, by what was staged, the same on every rank.

    Not finite halves the scale; 2,000 finite rounds on end double it (torch's GradScaler's rule).
    """

    def __init__(self) -> None:
        self.scale = INITIAL_SCALE
        self.num_finite = 0
        self._staged: tuple[float, int] | None = None

    @property
    def is_at_minimum(self) -> bool:
        """Whether backing off further would not help."""
        return self.scale <= MIN_SCALE

    def stage(self, is_finite: bool) -> None:
        """Note how a round's gradients came out."""
        if not is_finite:
            self._staged = (max(MIN_SCALE, self.scale * BACK_OFF), 0)
        elif self.num_finite + 1 >= GROWTH_INTERVAL:
            self._staged = (min(MAX_SCALE, self.scale * GROWTH), 0)
        else:
            self._staged = (self.scale, self.num_finite + 1)

    def commit(self) -> None:
        if self._staged is not None:
            self.scale, self.num_finite = self._staged
        self._staged = None

    def rollback(self) -> None:
        self._staged = None

    def state(self) -> dict[str, float]:
        """What a checkpoint or a newcomer needs."""
        return {"scale": self.scale, "num_finite": float(self.num_finite)}

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from ``state``."""
        self.scale, self.num_finite = state["scale"], int(state["num_finite"])
        self._staged = None

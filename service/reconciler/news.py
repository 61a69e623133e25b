"""Word from a step to the loop that takes steps: what was begun can go on now, and need not wait for the next look."""

from __future__ import annotations

from collections.abc import Callable


class News:
    """Of one reconciler. ``wake`` is called besides, and must not block."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self.is_there = False

    def tell(self) -> None:
        """There is something to go on with."""
        self.is_there = True
        self._wake()

    def take(self) -> None:
        """All that was told so far is looked at now."""
        self.is_there = False

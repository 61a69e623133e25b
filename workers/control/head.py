"""Whether Ray's head answers: who does not reach it may be the one that is cut off, and is perhaps replaced already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ray.exceptions import RayError

ANSWER_S = 2.0
"""An answer that takes longer proves nothing about the moment in which it was asked for."""

UNSURE = "workers out of reach are waited for, as this node may be the one that is cut off"


class Head:
    """Ray's head as one process sees it, by asking it a ``question`` now and then."""

    def __init__(self, question: Callable[[], Awaitable[None]]) -> None:
        self._question = question
        self._is_asking = False
        self._was_away = False
        self.seen_s: float | None = None
        """When the newest question that was answered in time was asked (``time.monotonic``)."""

    async def ask(self) -> bool:
        """Whether the question was put and has an end; False at once while an earlier one is in flight.

        Waits as long as Ray does, which ends this process where the head stays away (about a minute).
        """
        if self._is_asking:
            return False
        self._is_asking, asked_s = True, time.monotonic()
        question = asyncio.ensure_future(self._question())
        try:
            await asyncio.wait([question], timeout=ANSWER_S)
            if question.done():
                await question
                self.seen_s = asked_s
                return True
            print(f"Ray's head has not answered for {ANSWER_S:.0f} s: {UNSURE}", flush=True)
            await question
            self._was_away = True
        except RayError as error:
            print(f"Ray's head cannot be asked ({error}): {UNSURE}", flush=True)
            self._was_away = True
        finally:
            self._is_asking = False
        return True

    def take_was_away(self) -> bool:
        """Whether it was out of reach since this was called last."""
        was_away, self._was_away = self._was_away, False
        return was_away

"""Looking for the checkpoint to go on from, in a thread of its own: that the job is to end is heard meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from workers.control.restore import CheckpointSearch, Found
from workers.errors import described
from workers.status import CheckpointInfo, StopCause, StopReport, TimelineRow

STORAGE_S = 60.0
STORAGE_RETRY_S = 1.0
UNREAD_S = 30.0
"""A checkpoint that cannot be read for so long, while one before it can, is passed over as a damaged one is."""

ENOUGH_S = 2.0
"""A job that is to end waits so long for storage: whether it had been complete already is told by it."""

HEAR_S = 0.1
LONG_S = 10.0
"""What takes longer is told: it may be a large checkpoint, or a storage that hangs."""


class Lookout:
    """One attempt's search; ``latest`` is what it found last. All methods run on one event loop.

    ``has_looked``: what None as ``latest`` means is that there is nothing, and not that nobody has looked.
    """

    def __init__(self, search: CheckpointSearch) -> None:
        self._search = search
        self._looking: asyncio.Task[Found] | None = None
        self._begun_s = 0.0
        self._why = ""
        self._doubted = 0
        self.latest: CheckpointInfo | None = None
        self.has_looked = False

    def doubt(self, stops: Iterable[StopReport]) -> bool:
        """Whether a worker tells for the first time that it could not read the checkpoint to begin from."""
        unread = max((stop.generation for stop in stops if stop.cause is StopCause.CHECKPOINT), default=0)
        if unread <= self._doubted:
            return False
        self._doubted = unread
        self._search.doubt()
        return True

    async def look(self, is_needed: Callable[[], bool]) -> tuple[TimelineRow, ...]:
        """Bring ``latest`` up to date; the rows tell of newer ones that are passed over.

        The newest one is read to its end, however long that takes; where it is not needed any more, the search goes
        on by itself, for whoever asks next. Raises OSError where storage stays away.
        """
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._found())
            self._begun_s, self._why = time.monotonic(), ""
        until_s: float | None = None
        while not self._looking.done():
            if not is_needed():
                until_s = until_s or time.monotonic() + ENOUGH_S
                if time.monotonic() > until_s:
                    return ()
            await asyncio.wait([self._looking], timeout=HEAR_S)
        looked, self._looking = self._looking, None
        found = looked.result()
        self.latest, self.has_looked = found.latest, True
        return found.rows

    def forget(self) -> None:
        """Somebody holds a newer state, or nobody asks again; what a thread has begun it ends by itself."""
        self.latest, self.has_looked = None, False
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def told(self, now_s: float) -> str:
        """What is waited for, where that has taken long by now; else empty."""
        if self._looking is None or (waited_s := now_s - self._begun_s) < LONG_S:
            return ""
        where = self._search.url
        why = self._why or "does it answer?"
        return f"the newest checkpoint is looked for and read in {where}, for {waited_s:.0f} s by now; {why}"

    async def _found(self) -> Found:
        """Storage that fails for a moment is asked again: to take it for empty would be to begin anew."""
        begun_s = time.monotonic()
        while True:
            # Of large checkpoints one try may take longer than all this: the second one is the last word all the same.
            is_long = time.monotonic() - begun_s >= min(UNREAD_S, STORAGE_S)
            try:
                return await asyncio.wrap_future(_begun(partial(self._search.look, passes_unread=is_long)))
            except OSError as error:
                self._why = f"the last try: {described(error)}"
                print(f"checkpoints cannot be looked for: {error}", flush=True)
                if is_long and time.monotonic() - begun_s > STORAGE_S:
                    raise
            await asyncio.sleep(STORAGE_RETRY_S)


def _begun(search: Callable[[], Found]) -> Future[Found]:
    """Of no pool: one that hangs takes no thread that others need, and the process ends without it."""
    answer = Future[Found]()
    # Nobody can take it back any more: what it comes to is told, whether anybody still listens or not.
    answer.set_running_or_notify_cancel()

    def work() -> None:
        try:
            answer.set_result(search())
        except BaseException as error:  # raised where the answer is awaited
            answer.set_exception(error)

    threading.Thread(target=work, name="search", daemon=True).start()
    return answer

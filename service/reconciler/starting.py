"""How often a controller is started in vain or dies before it is of use, and what the job's owner is told. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from service.records import Explanation
from workers.errors import Failure, Reason, described

FIRST_S = 0.5
MOST_S = 30.0
MAX_STARTS = 5
STEADY_S = 30.0
"""A controller that tells for so long can work, whether or not the job gets further meanwhile: builds take minutes."""

REMEDY = (
    "Look for that error in the logs of Ray on the service's machine (often it has no memory left, or other code "
    "than the service), put it right, and retry the job."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Tries that failed on end: after each the pause is twice as long. ``due_s`` is a monotonic time."""

    num_failed: int = 0
    due_s: float = -math.inf

    def failed(self, now_s: float) -> Backoff:
        """One more try that failed, at ``now_s``."""
        pause_s = min(MOST_S, FIRST_S * 2.0 ** min(self.num_failed, 16))
        return Backoff(num_failed=self.num_failed + 1, due_s=now_s + pause_s)

    def is_due(self, now_s: float) -> bool:
        """Whether to try now."""
        return now_s >= self.due_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Controllers started since one was of use, the first at ``since_s``.

    ``error`` is what the latest one's start raised, or how it was found after; empty while it may go well.
    ``cursor`` is the most samples that any told of (-1: none told yet), ``heard_s`` since when the latest tells.
    """

    backoff: Backoff = Backoff()
    since_s: float = math.inf
    error: str = ""
    cursor: int = -1
    heard_s: float = math.inf

    def after(self, began_s: float, ended_s: float, error: str) -> Starts:
        """One more start, until what it tells shows that it was not in vain."""
        since_s, backoff = min(self.since_s, began_s), self.backoff.failed(ended_s)
        return replace(self, backoff=backoff, since_s=since_s, error=error, heard_s=math.inf)

    def heard(self, cursor: int, now_s: float) -> Starts:
        """The latest controller has told; it is of use once the job gets further under it, or it has lived for long."""
        heard_s = min(self.heard_s, now_s)
        if cursor > self.cursor or now_s - heard_s >= STEADY_S:
            return Starts(cursor=max(cursor, self.cursor), heard_s=heard_s)
        return replace(self, error="", heard_s=heard_s)

    def forgiven(self) -> Starts:
        """What was tried until now is not held against controllers."""
        return Starts(cursor=self.cursor)

    def found(self, seen: str) -> Starts:
        """The latest controller gives no snapshot any more: ``seen`` is why, where its start did not tell already."""
        return replace(self, error=self.error or seen)

    def is_paused(self, now_s: float) -> bool:
        """Whether nothing is to be expected before the next try."""
        return bool(self.error) and not self.backoff.is_due(now_s)

    def is_hopeless(self, now_s: float, place_s: float, *, has_workers: bool) -> bool:
        """Whether no more is to be tried. Workers, that train on without a controller, are given up by time alone."""
        is_tried_enough = self.backoff.num_failed >= MAX_STARTS and not has_workers
        return is_tried_enough or now_s - self.since_s >= place_s

    def explanation(self) -> Explanation:
        """For the owner of a job that is tried again."""
        what = "Its controller does not start" if self.cursor < 0 else "Its controllers end before anything is trained"
        return Explanation(
            summary=f"{what}: {self.error}.",
            details=(f"That is so after {_times(self.backoff.num_failed)}; it is tried again, later each time.",),
            remedy=REMEDY,
        )

    def failure(self) -> Failure:
        """For a job that is tried no more."""
        what = "its controller did not start" if self.cursor < 0 else "nothing was trained under its controllers"
        message = f"{what} in {_times(self.backoff.num_failed)}: {self.error}"
        return Failure(reason=Reason.CONTROLLER_ERROR, type="ControllerStartError", message=message)


def storage_away(url: str, error: OSError) -> Explanation:
    """For the owner of a job that waits until its storage can be read."""
    return Explanation(
        summary=f"The storage {url} cannot be read: {described(error)}; it is tried again.",
        remedy="Bring the storage back (mount, network, keys, permissions); the job then goes on by itself.",
    )


def _times(count: int) -> str:
    return "1 try" if count == 1 else f"{count} tries"

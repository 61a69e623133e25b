"""How often a job's controller is started in vain, when it is tried again, and what its owner is told. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from service.records import Explanation
from workers.errors import Failure, Reason, described

FIRST_S = 0.5
MOST_S = 30.0
MAX_STARTS = 5

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
    """Controllers started since one gave a snapshot, the first at ``since_s``.

    ``error`` is what the latest one's start raised, or how it was found after; empty while it may go well.
    """

    backoff: Backoff = Backoff()
    since_s: float = math.inf
    error: str = ""

    def after(self, began_s: float, ended_s: float, error: str) -> Starts:
        """One more start, until a snapshot shows that it was not in vain."""
        since_s = min(self.since_s, began_s)
        return Starts(backoff=self.backoff.failed(ended_s), since_s=since_s, error=error)

    def found(self, seen: str) -> Starts:
        """The latest controller gives no snapshot: ``seen`` is why, where its start did not tell already."""
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
        return Explanation(
            summary=f"Its controller does not start: {self.error}.",
            details=(f"That is so after {_times(self.backoff.num_failed)}; it is tried again, later each time.",),
            remedy=REMEDY,
        )

    def failure(self) -> Failure:
        """For a job that is tried no more."""
        message = f"its controller did not start in {_times(self.backoff.num_failed)}: {self.error}"
        return Failure(reason=Reason.CONTROLLER_ERROR, type="ControllerStartError", message=message)


def storage_away(url: str, error: OSError) -> Explanation:
    """For the owner of a job that waits until its storage can be read."""
    return Explanation(
        summary=f"The storage {url} cannot be read: {described(error)}; it is tried again.",
        remedy="Bring the storage back (mount, network, keys, permissions); the job then goes on by itself.",
    )


def _times(count: int) -> str:
    return "1 try" if count == 1 else f"{count} tries"

"""The words in which the oracle tells what went wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

LOOK_S = 0.25


class Kind(StrEnum):
    """What sort of promise was broken."""

    LOST = "an accepted job was lost"
    TWICE_MADE = "one submission made two jobs"
    TWICE_RUN = "a job ran twice at once"
    TERMS = "two terms of a job at once"
    STEP = "an optimizer step was skipped or repeated"
    SAMPLE = "a sample was skipped or repeated"
    STATE = "an illegal transition or a wrong sequence of events"
    POINT = "a metric point is missing or double"
    TIMELINE = "the timeline is wrong"
    CHECKPOINT = "the list of checkpoints is not what storage holds"
    SWEEP = "a sweep's books are wrong"
    LEFT = "something was left behind"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise; ``about`` is a job or a thing."""

    kind: Kind
    about: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.about}: {self.detail}"


def assert_nothing_found(findings: Sequence[Finding], account: Callable[[str], str] = lambda about: "") -> None:
    """End a test: fails with every finding in a line of its own, then what the ``account`` tells of its subject."""
    found = [str(finding) for finding in findings]
    told = [account(about) for about in dict.fromkeys(finding.about for finding in findings)]
    assert not found, "\n".join(["the oracle found:", *found, *told])


async def at_rest(look: Callable[[], Awaitable[list[Finding]]], limit_s: float) -> list[Finding]:
    """What is found once there is nothing any more, or once ``limit_s`` is over: the reaper takes its time."""
    deadline_s = time.monotonic() + limit_s
    while (found := await look()) and time.monotonic() < deadline_s:
        await asyncio.sleep(LOOK_S)
    return found

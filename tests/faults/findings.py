"""The words in which the oracle tells what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What sort of promise was broken."""

    LOST = "an accepted job was lost"
    TWICE_MADE = "one submission made two jobs"
    TWICE_RUN = "a job ran twice at once"
    STEP = "an optimizer step was skipped or repeated"
    SAMPLE = "a sample was skipped or repeated"
    STATE = "an illegal transition or a wrong sequence of events"
    POINT = "a metric point is missing or double"
    TIMELINE = "the timeline is wrong"
    CHECKPOINT = "the list of checkpoints is not what storage holds"
    LEFT = "something was left behind"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise; ``about`` is a job or a thing."""

    kind: Kind
    about: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.about}: {self.detail}"


def assert_nothing_found(findings: Iterable[Finding]) -> None:
    """End a test: fails with every finding in a line of its own."""
    found = [str(finding) for finding in findings]
    assert not found, "\n".join(["the oracle found:", *found])

"""Schedules and their runs as the store gives and takes them. Times are Unix seconds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.configuration_records import ConfigurationRow
from service.schedule_spec import ScheduleSpec
from service.targets import Kind, Target, configuration_of, read_target


class ScheduleState(StrEnum):
    """ENDED: no nominal time comes any more."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    ENDED = "ENDED"


class Outcome(StrEnum):
    """What became of a nominal time."""

    STARTED = "STARTED"
    SKIPPED = "SKIPPED"
    BUFFERED = "BUFFERED"
    MISSED = "MISSED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A nominal time that nothing was decided about yet, and when that is due: later by its jitter."""

    nominal_at: float
    due_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One schedule as stored.

    ``version`` grows with each change of intent (If-Match compares it), ``changed`` with every write, and guards
    all of them. ``upcoming`` is None unless it is ACTIVE. ``num_failures`` are those in a row.
    """

    id: str
    name: str
    spec_json: str
    state: ScheduleState
    reason: str | None
    version: int
    changed: int
    upcoming: Upcoming | None
    num_failures: int
    created_at: float

    @property
    def spec(self) -> ScheduleSpec:
        """The resolved spec, parsed anew at every call."""
        return ScheduleSpec.model_validate_json(self.spec_json)

    @property
    def configuration(self) -> str | None:
        """The name of the configuration that its sweeps take their job from."""
        return configuration_of(self.document["target"])

    def target(self, configuration: ConfigurationRow | None) -> Target:
        """What it starts; ``configuration`` is the one of that name as it is now.

        Raises SpecError where this version of the service takes it no longer.
        """
        return read_target(self.document["target"], self.name, has_prices=True, configuration=configuration)

    @property
    def document(self) -> dict[str, Any]:
        """The resolved spec as a fresh JSON document."""
        value: dict[str, Any] = json.loads(self.spec_json)
        return value

    @property
    def etag(self) -> str:
        """``"v<version>.<changed>"``, as of a job."""
        return f'"v{self.version}.{self.changed}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What became of one nominal time, decided at ``fired_at``; ``child_state`` is None where there is no child.

    ``child_lives`` also where that has ended, and what follows it by itself has not: a sweep's winner is compared.
    """

    nominal_at: float
    fired_at: float
    outcome: Outcome
    kind: Kind
    child_id: str | None
    child_state: str | None
    child_lives: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class EndedChild:
    """The child of a nominal time was found to have ended; None: otherwise than well or by its own fault."""

    nominal_at: float
    has_failed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A schedule of which something is to be decided, with all that the decision looks at.

    ``num_living``: children that have not ended. ``buffered_at``: the nominal time that waits for them and starts
    after them; while the schedule is paused, one asked for by hand. ``ended`` have not been counted yet.
    ``latest_at`` is the latest nominal time of which there is a run. ``fault``: why no child could be started now.
    """

    schedule: ScheduleRow
    num_living: int
    buffered_at: float | None
    ended: tuple[EndedChild, ...]
    latest_at: float | None
    fault: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A decision about a nominal time: one that was BUFFERED may be STARTED or FAILED later."""

    nominal_at: float
    outcome: Outcome
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """All that is written at once about one schedule; its children are started in the same transaction.

    ``should_cancel``: children that live are cancelled first.
    """

    runs: tuple[NewRun, ...]
    ended: tuple[EndedChild, ...]
    upcoming: Upcoming | None
    num_failures: int
    state: ScheduleState
    reason: str | None
    should_cancel: bool = False

    def changes(self, schedule: ScheduleRow) -> bool:
        """Whether there is anything to write."""
        is_same = (self.state, self.upcoming) == (schedule.state, schedule.upcoming)
        return bool(self.runs or self.ended) or not is_same


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedules:
    """``next_at`` is when the next one will be due, None where none will."""

    due: tuple[Due, ...]
    next_at: float | None

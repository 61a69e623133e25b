"""Sweeps and their trials as the store gives and takes them. Times are Unix seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.configuration_records import Origin
from service.states import JobState
from tuning.orders import NO_PLACES, Places
from tuning.spec import SweepSpec
from tuning.trial import ENDED, Change, Report, Trial, TrialState
from tuning.values import Params
from workers.errors import Reason
from workers.spec_parts import Resources


class SweepState(StrEnum):
    """States of a sweep (contract, part 2b)."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


ENDED_SWEEPS = frozenset((SweepState.STOPPED, SweepState.SUCCEEDED, SweepState.FAILED))
"""Nothing is started any more, unless the user extends it or retries what failed."""


class Wish(StrEnum):
    """What a search wants of a trial that has not ended."""

    RUN = "run"
    HOLD = "hold"
    PRUNE = "prune"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One sweep as stored.

    ``version`` grows with each change of intent (If-Match compares it), ``changed`` with every write, and guards
    all of them. ``num_trials`` is how many it may have, extensions counted. ``term`` counts its controllers.
    ``importance`` is the share of each parameter in what made trials good.
    ``ran_s`` are the seconds that it ran until ``runs_since``, None while it does not run. ``origin`` is the
    configuration that its job was taken from, ``promote_to`` the one that its winner is to be held against as soon as
    it has ended, None where nothing is to be.
    """

    id: str
    name: str
    spec_json: str
    state: SweepState
    reason: str | None
    version: int
    changed: int
    num_trials: int
    term: int
    importance: Mapping[str, float]
    ran_s: float
    runs_since: float | None
    created_at: float
    finished_at: float | None
    promote_to: str | None
    origin: Origin | None

    @property
    def spec(self) -> SweepSpec:
        """The resolved spec, parsed anew at every call."""
        return SweepSpec.model_validate_json(self.spec_json)

    @property
    def document(self) -> dict[str, Any]:
        """The resolved spec as a fresh JSON document."""
        value: dict[str, Any] = json.loads(self.spec_json)
        return value

    @property
    def etag(self) -> str:
        """``"v<version>.<changed>"``, as of a job."""
        return f'"v{self.version}.{self.changed}"'

    def time_s(self, now_s: float) -> float:
        """The seconds that it has run."""
        return self.ran_s + (0.0 if self.runs_since is None else max(0.0, now_s - self.runs_since))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """A trial shall go on from the state of trial ``donor`` with these parameters.

    The donor's job was asked for a checkpoint at ``asked_at`` (Unix seconds), its request number ``saves``; 0 where it
    did not train then, so that what it saved last has to do.
    """

    donor: int
    params: Params
    reason: str
    saves: int
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a population made of a trial: the changes that were carried out, and the one that is decided.

    ``place`` is the (attempt, lineage) of the state given up last, or of what it took over then. ``num_awaited`` is
    above 0 while the first report after a change is awaited: so many of the state given up may come before.
    """

    changes: tuple[Change, ...] = ()
    taking: Taking | None = None
    place: tuple[int, int] = (0, 0)
    num_awaited: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial as stored.

    ``is_held``: its job was paused by the sweep. ``must_retry``: it failed, and is tried again once there is room.
    ``seen`` is the change up to which its job's points were read.
    ``seconds`` are those of its workers, summed. ``params`` are those of now, ``course`` tells of changes.
    """

    number: int
    params: Params
    state: TrialState
    wish: Wish
    is_held: bool
    must_retry: bool
    value: float | None
    reports: tuple[Report, ...]
    job_id: str
    reason: str | None
    seconds: float
    started_at: float | None
    finished_at: float | None
    changed: int
    seen: int
    course: Course = Course()

    @property
    def samples(self) -> int:
        """How far it is."""
        return self.reports[-1].samples if self.reports else 0

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    def for_search(self) -> Trial:
        """As a search counts it: what it wants is as good as done, and what is about to start takes a place."""
        wanted = {Wish.RUN: TrialState.RUNNING, Wish.HOLD: TrialState.WAITING, Wish.PRUNE: TrialState.PRUNED}
        return Trial(
            number=self.number,
            params=self.params,
            state=self.state if self.is_ended else wanted[self.wish],
            value=self.value,
            reports=self.reports,
            seconds=self.seconds,
            job_id=self.job_id,
            changes=self.course.changes,
            is_changing=self.course.taking is not None or self.course.num_awaited > 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """What the job of a trial has come to; ``samples`` are those that its state has drawn."""

    state: JobState
    reason: Reason | None
    why: str
    samples: int
    total_samples: int | None
    worker_s: float
    started_at: float | None
    finished_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The seconds of workers, summed, that one trial has had, with the parameters that say what they cost."""

    params: Params
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsSpent:
    """The seconds of workers, summed, that runs of one contender of a promotion have had, with what each worker got."""

    resources: Resources
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """What all promotions of a sweep have used: how long they have gone on, and their ``runs``.

    Both are told only where limits bound them: ``runs`` where money is limited.
    """

    time_s: float = 0.0
    runs: tuple[RunsSpent, ...] = ()


NOTHING_PROMOTED = Promoted()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A sweep with trials of it, as one transaction saw them; ``samples_per_epoch`` once a trial has told it.

    ``spent`` tells of all its trials as of now, whatever their rows say; only the reconciler's view has it, and only
    where money is limited. Likewise ``places``, only of a population. ``promoted`` counts against the same limits.
    """

    sweep: SweepRow
    trials: tuple[TrialRow, ...]
    samples_per_epoch: int | None
    spent: tuple[Spent, ...] = ()
    places: Places = NO_PLACES
    promoted: Promoted = NOTHING_PROMOTED


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLook:
    """A sweep after a look at its trials' jobs; ``has_told``: a job of them was told something in it."""

    sweep: SweepRow
    has_told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """How many trials are in each state."""

    waiting: int = 0
    running: int = 0
    complete: int = 0
    pruned: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return self.waiting + self.running + self.complete + self.pruned + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What earlier jobs of the same code did.

    ``samples_per_epoch`` is the size of the data of the newest that told it, ``samples_per_worker_s`` the mean
    speed of one worker, waiting and starting counted; None where no job told it.
    """

    num_jobs: int
    samples_per_epoch: int | None
    samples_per_worker_s: float | None

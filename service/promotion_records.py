"""Promotions as the store gives and takes them: a sweep's finalists against the configuration in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from service.configuration_records import ConfigurationRow
from service.states import ENDED_STATES, JobState
from service.sweep_records import SweepRow, TrialRow
from tuning.values import Params

INCUMBENT = -1
"""Among contenders, where finalists have the numbers of their trials."""


class PromotionState(StrEnum):
    """How it stands. WAITING: it begins once the sweep has ended; no row has it.

    KEPT: nothing was proven better, nor as good and cheaper. FAILED: there was nothing to compare, runs
    that were to tell failed, or there was nothing to replace (any more).
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    PROMOTED = "PROMOTED"
    KEPT = "KEPT"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


Evidence: TypeAlias = Mapping[str, Any]

BETTER, CHEAPER = "better", "cheaper"
"""Why a finalist took the incumbent's place; rows from before there were two reasons have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A finalist by its trial's number, or the INCUMBENT, with its whole job spec without name."""

    number: int
    params: Params
    job: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRow:
    """One promotion as stored; ``number`` counts those of a sweep from 1, ``changed`` guards every write.

    ``base_version`` is that of the configuration against which is compared, ``version`` the one that it became.
    ``seeds`` are shared: run n of every contender has the nth.
    """

    sweep_id: str
    number: int
    configuration: str
    base_version: int
    state: PromotionState
    reason: str | None
    contenders: tuple[Contender, ...]
    seeds: tuple[int, ...]
    evidence: Evidence | None
    version: int | None
    changed: int
    created_at: float
    finished_at: float | None


def lasted_s(created_at: float, finished_at: float | None, now_s: float) -> float:
    """How long a promotion took, or has gone on so far."""
    return max(0.0, (now_s if finished_at is None else finished_at) - created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRun:
    """Training a contender with the seed of a pair, as its job shows it now; ``seconds`` are those of its workers.

    ``score`` is the sweep's metric at its end, None where it failed or goes on. ``is_news``: it has ended, and
    the row does not say so yet. ``job_state`` is None where the job is gone.
    """

    contender: int
    pair: int
    job_id: str
    score: float | None
    seconds: float
    is_open: bool
    is_news: bool = False
    job_state: JobState | None = None

    @property
    def can_cancel(self) -> bool:
        """Whether its job is to be told, and has not been."""
        is_over = self.job_state is None or self.job_state in ENDED_STATES or self.job_state is JobState.CANCELLING
        return self.is_open and not is_over


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPromotion:
    """One that is over, of a sweep that has a later one; its ``runs`` are there where a limit of cost counts them."""

    promotion: PromotionRow
    runs: tuple[PromotionRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionView:
    """A sweep of which something may be promoted, as one transaction saw it.

    ``trials`` are there to begin one, and to count costs. ``promotion`` is the latest, or
    an earlier one whose runs have not ended, with its ``runs``; while it goes on, ``earlier`` are those before it.
    ``configuration`` is the one that is to be compared with, as it is now; ``seeds`` are those of earlier promotions of
    this sweep and to that configuration, by its luck with which it may be in use. ``samples_per_epoch`` is None while
    nobody knows it.
    """

    sweep: SweepRow
    trials: tuple[TrialRow, ...]
    promotion: PromotionRow | None
    runs: tuple[PromotionRun, ...]
    earlier: tuple[EarlierPromotion, ...]
    configuration: ConfigurationRow | None
    seeds: tuple[int, ...]
    samples_per_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Who is to be compared on which seeds; with ``refusal`` nobody, and why."""

    contenders: tuple[Contender, ...] = ()
    seeds: tuple[int, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What a promotion comes to; ``winner`` replaces the configuration, if that is still the one compared with."""

    state: PromotionState
    reason: str
    winner: Contender | None = None
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is to be done now: runs to start (contender, pair), runs to cancel, and the end where it has come."""

    start: tuple[tuple[int, int], ...] = ()
    cancel: tuple[PromotionRun, ...] = ()
    end: End | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionStanding:
    """What lists show of the latest promotion of a sweep: how many runs were started, how many have ended.

    ``current_version`` is that of its configuration by now, None where it is gone.
    """

    promotion: PromotionRow
    current_version: int | None
    num_runs: int = 0
    num_ended: int = 0
    seconds: float = field(default=0.0)

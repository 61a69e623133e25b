"""What a search is told and what it answers: rows in, orders out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tuning.limits import Used
from tuning.trial import Trial
from tuning.values import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin a trial at a point.

    ``first_rung`` (in samples) is where it is compared first, None where nowhere; ``until`` where it waits for that.
    """

    number: int
    params: Params
    first_rung: int | None
    until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Let a running trial wait, with its state kept: at a rung, or while others have their turn, given in samples."""

    number: int
    rung: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Let a waiting trial train on, up to ``until`` (in samples; None: to its end); ``reason`` may be empty."""

    number: int
    reason: str
    until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Let a running trial, which has passed its rung, train on up to ``until`` (in samples; None: to its end)."""

    number: int
    until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """End a trial for good."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """Let a running trial go on from the state of trial ``donor``, as it is by now, with these parameters."""

    number: int
    donor: int
    params: Params
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The sweep is over; what still waits is pruned."""

    has_succeeded: bool
    reason: str


Order: TypeAlias = Start | Hold | Resume | Advance | Prune | Exploit | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Which trials have a place on the cluster and train.

    ``lacking`` are those that wait for one, first in line first, up to the first job of somebody else that could have
    it: what would not fit into the empty cluster waits before nobody.
    """

    training: Set[int] = frozenset()
    lacking: tuple[int, ...] = ()


NO_PLACES = Places()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a sweep stands, besides its trials.

    ``num_trials`` is how many it may have in all; ``samples_per_epoch`` None until a trial has told its data;
    ``used`` is what its limits bound. ``places`` are told where the sweep has a population.
    """

    num_trials: int
    samples_per_epoch: int | None
    used: Used
    places: Places = NO_PLACES


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a search begins from: its resolved spec as JSON, and the trials of the sweeps that it learns from.

    ``forebears`` are those from which these began in turn, the latest first, with what they tried: a search learns
    nothing of them, and tries something else. ``incumbents`` are the job specs in use now, whose points it tries first.
    """

    spec_json: str
    earlier: Mapping[str, Sequence[Trial]]
    forebears: Mapping[str, Sequence[Params]] = field(default_factory=dict)
    incumbents: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``trials`` are those that changed since the last question; all, in the order in which they ended, at a beginning.

    A trial is WAITING only where it is held at a rung; one that is about to start counts as RUNNING.
    """

    beginning: Beginning | None
    trials: Sequence[Trial]
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``orders`` are to be carried out as they stand, all in one; ``importance`` is each parameter's share."""

    orders: tuple[Order, ...]
    importance: Mapping[str, float]

"""What becomes of nominal times that are due. Pure: rows and a time in, everything to write out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from service import words
from service.schedule_records import Due, Firing, NewRun, Outcome, ScheduleRow, ScheduleState, Upcoming
from service.schedule_spec import Overlap, ScheduleSpec
from service.times import rfc3339

ON_TIME_S = 10.0
"""So late a nominal time still counts as met: whoever looks at a clock is a little late."""

MAX_AT_ONCE = 100
"""Nominal times to start something at that are decided in one transaction; the next ones in the next."""

MAX_COUNTED = 1000
MAX_TOLD = 20
"""Of missed times: how many get a run of their own; those before them are told in one, counted up to MAX_COUNTED."""

BY_HAND = "triggered by hand"


def first_upcoming(spec: ScheduleSpec, schedule_id: str, after_s: float) -> Upcoming | None:
    """The first nominal time later than ``after_s``; None where there is none any more."""
    return next(_upcoming(spec, schedule_id, after_s), None)


def is_by_hand(nominal_s: float) -> bool:
    """Whether a run was asked for by a person: ``decide_trigger`` keeps off the whole minutes."""
    return nominal_s % 60 != 0


def may_start(state: ScheduleState, nominal_s: float) -> bool:
    """Whether a run that waits starts as soon as nothing lives: while a schedule is paused, only one by hand."""
    return state is not ScheduleState.PAUSED or is_by_hand(nominal_s)


def decide(due: Due, now_s: float) -> Firing:
    """What to do about everything of a schedule that is due at ``now_s``."""
    row = _counted(due)
    choice = _Choice(due, row.spec.overlap)
    if row.state is ScheduleState.PAUSED:
        may_run = due.buffered_at is not None and may_start(row.state, due.buffered_at)
        runs = [*choice.of_buffered()] if may_run else []
        return _firing(due, _with_failures(row, runs), runs)
    taken = _taken(row, now_s)
    runs = [*_missed(taken, now_s, row.spec), *choice.of_buffered(), *choice.of(taken.times, now_s)]
    # A run by hand may wait after the end; that brings no nominal time back.
    is_over = row.state is ScheduleState.ENDED or (taken.upcoming is None and choice.buffered_at is None)
    state = ScheduleState.ENDED if is_over else ScheduleState.ACTIVE
    row = _with_failures(replace(row, state=state, upcoming=taken.upcoming), runs)
    return replace(_firing(due, row, runs), should_cancel=choice.should_cancel)


def decide_trigger(due: Due, now_s: float) -> Firing:
    """What becomes of a run that a person asks for now, by the same rules: its only run."""
    # Others' nominal times are whole minutes, and a clock may stand still or go back.
    nominal_s = round(max(now_s, (due.latest_at or 0.0) + 0.001), 3)
    if nominal_s % 60 == 0:
        nominal_s = round(nominal_s + 0.001, 3)
    choice = _Choice(due, due.schedule.spec.overlap)
    runs = [replace(run, reason=run.reason or BY_HAND) for run in choice.of([Upcoming(nominal_s, now_s)], now_s)]
    firing = _firing(replace(due, ended=()), _with_failures(due.schedule, runs), runs)
    return replace(firing, should_cancel=choice.should_cancel)


def _upcoming(spec: ScheduleSpec, schedule_id: str, after_s: float) -> Iterator[Upcoming]:
    """Nominal times in order; each is due before the next one is, whatever the jitter."""
    times = spec.nominal_times(after_s)
    if not spec.jitter_s:
        yield from (Upcoming(nominal_s, nominal_s) for nominal_s in times)
        return
    nominal_s = next(times, None)
    while nominal_s is not None:
        following_s = next(times, None)
        room_s = spec.jitter_s if following_s is None else min(spec.jitter_s, following_s - nominal_s - 1)
        # Drawn from the names alone: whoever decides, and however often, finds the same.
        yield Upcoming(nominal_s, nominal_s + random.Random(f"{schedule_id}/{nominal_s:.0f}").random() * room_s)
        nominal_s = following_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """Nominal times up to now: ``late`` ones are beyond the window; ``upcoming`` is the first that is left."""

    late: Sequence[Upcoming]
    has_more_late: bool
    times: Sequence[Upcoming]
    upcoming: Upcoming | None


def _taken(row: ScheduleRow, now_s: float) -> _Taken:
    spec, here = row.spec, row.upcoming
    late: list[Upcoming] = []
    times: list[Upcoming] = []
    has_more = False
    following = iter(()) if here is None else _upcoming(spec, row.id, here.nominal_at)
    window_s = max(spec.catchup_window_s, ON_TIME_S)
    while here is not None and here.due_at <= now_s and len(times) < MAX_AT_ONCE:
        (late if now_s - here.due_at > window_s else times).append(here)
        if len(late) == MAX_COUNTED and not has_more:
            has_more = True
            following = _upcoming(spec, row.id, max(here.nominal_at, now_s - window_s - spec.jitter_s - 1))
        here = next(following, None)
    return _Taken(late=late, has_more_late=has_more, times=times, upcoming=here)


def _missed(taken: _Taken, now_s: float, spec: ScheduleSpec) -> Iterator[NewRun]:
    late = taken.late
    window = f"the window to catch up is {words.duration(spec.catchup_window_s)}"
    if len(late) > MAX_TOLD:
        rolled, late = late[: 1 - MAX_TOLD], late[1 - MAX_TOLD :]
        number = (
            f"{'more than ' if taken.has_more_late else ''}{len(rolled)} times from {rfc3339(rolled[0].nominal_at)}"
        )
        yield NewRun(
            nominal_at=rolled[-1].nominal_at,
            outcome=Outcome.MISSED,
            reason=f"{number} on were noticed too late; {window}",
        )
    for each in late:
        told = f"noticed {words.duration(now_s - each.due_at)} late; {window}"
        yield NewRun(nominal_at=each.nominal_at, outcome=Outcome.MISSED, reason=told)


@dataclass(slots=True)
class _Choice:
    """Goes through nominal times in their order, and knows what lives by then."""

    due: Due
    overlap: Overlap
    is_busy: bool = field(init=False)
    buffered_at: float | None = field(init=False)
    should_cancel: bool = False

    def __post_init__(self) -> None:
        self.is_busy, self.buffered_at = self.due.num_living > 0, self.due.buffered_at

    def of_buffered(self) -> Iterator[NewRun]:
        """The one that waits is started once nothing lives."""
        if self.buffered_at is not None and not self.is_busy:
            nominal_s, self.buffered_at = self.buffered_at, None
            yield self._start(nominal_s, "waited for the run before to end")

    def of(self, times: Sequence[Upcoming], now_s: float) -> Iterator[NewRun]:
        """What becomes of nominal times that are due and not too late."""
        for n, each in enumerate(times):
            late_s = now_s - each.due_at
            told = f"caught up {words.duration(late_s)} late" if late_s > ON_TIME_S else None
            yield self._one(each.nominal_at, told, is_last=n + 1 == len(times))

    def _one(self, nominal_s: float, told: str | None, *, is_last: bool) -> NewRun:
        match self.overlap:
            case Overlap.CANCEL_OTHER if not is_last:
                return NewRun(nominal_at=nominal_s, outcome=Outcome.SKIPPED, reason="a later one was due as well")
            case Overlap.CANCEL_OTHER:
                self.should_cancel = self.is_busy
            case Overlap.ALLOW:
                pass
            case Overlap.BUFFER_ONE if self.is_busy and self.buffered_at is None:
                self.buffered_at = nominal_s
                return NewRun(nominal_at=nominal_s, outcome=Outcome.BUFFERED, reason="waits for the run before to end")
            case _ if self.is_busy:
                waits = " and one waits already" if self.buffered_at is not None else ""
                before = "the run before, its promotion counted," if _promotes(self.due.schedule) else "the run before"
                why = f"{before} has not ended{waits}; overlap is {self.overlap}"
                return NewRun(nominal_at=nominal_s, outcome=Outcome.SKIPPED, reason=why)
        return self._start(nominal_s, told)

    def _start(self, nominal_s: float, told: str | None) -> NewRun:
        if self.due.fault is not None:
            return NewRun(nominal_at=nominal_s, outcome=Outcome.FAILED, reason=self.due.fault)
        self.is_busy = True
        return NewRun(nominal_at=nominal_s, outcome=Outcome.STARTED, reason=told)


def _promotes(row: ScheduleRow) -> bool:
    """Whether its sweeps go on, when their trials have ended, with holding their winners against a configuration."""
    sweep = row.spec.target.get("sweep")
    return isinstance(sweep, dict) and sweep.get("promote") is not None


def _counted(due: Due) -> ScheduleRow:
    """The row with the ends of children counted, in the order of their nominal times."""
    row = due.schedule
    for child in sorted(due.ended, key=lambda child: child.nominal_at):
        if child.has_failed is not None:
            row = _paused_by_failures(replace(row, num_failures=row.num_failures + 1 if child.has_failed else 0))
    return row


def _with_failures(row: ScheduleRow, runs: Iterable[NewRun]) -> ScheduleRow:
    """What cannot even be started has failed, too."""
    number = sum(run.outcome is Outcome.FAILED for run in runs)
    return _paused_by_failures(replace(row, num_failures=row.num_failures + number)) if number else row


def _paused_by_failures(row: ScheduleRow) -> ScheduleRow:
    limit = row.spec.pause_after_failures
    if limit is None or row.num_failures < limit or row.state is not ScheduleState.ACTIVE:
        return row
    why = f"{words.plural(row.num_failures, 'run')} in a row failed; see to the cause, then resume it"
    return replace(row, state=ScheduleState.PAUSED, reason=why, upcoming=None)


def _firing(due: Due, row: ScheduleRow, runs: Iterable[NewRun]) -> Firing:
    return Firing(
        runs=tuple(runs),
        ended=due.ended,
        upcoming=row.upcoming,
        num_failures=row.num_failures,
        state=row.state,
        reason=row.reason,
    )

"""The schedule spec: when something is to be started again and again, and what.

``parse_schedule_spec`` is the one way in: all problems at once, each with its pointer, value and remedy. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Field, JsonValue, ValidationError

from service.configuration_records import ConfigurationRow
from service.cron import Cron
from service.targets import Target, read_target
from service.times import rfc3339
from workers.errors import FieldProblem, SpecError
from workers.problems import Place, problems_of
from workers.spec_parts import NAME_PATTERN, WHOLE, SpecPart

DAY_S = 24 * 3600
MAX_CATCHUP_S = 31 * DAY_S
YEARS = range(2000, 2200)

_TOLD: dict[Place, str] = {
    ("name",): "must be a DNS-1123 label: lower-case letters, digits and '-', at most 63 characters",
    ("target",): "must be a mapping with the spec of a job or a sweep: {job: {...}} or {sweep: {...}}",
    ("cron",): "must be a text of five fields, such as '0 2 * * 1-5'",
    ("time_zone",): "must be the IANA name of a zone, such as Europe/Berlin, or UTC",
    ("start",): "must be a time by RFC 3339 with its offset, such as 2026-11-20T09:30:00Z, in quotes",
    ("end",): "must be a time by RFC 3339 with its offset, such as 2026-11-20T09:30:00Z, in quotes",
}


class Overlap(StrEnum):
    """What becomes of a nominal time while a child of an earlier one has not ended."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    CANCEL_OTHER = "cancel_other"
    ALLOW = "allow"


def _cron(text: str) -> str:
    return Cron(text).text


@cache
def _zone_names() -> frozenset[str]:
    # What begins with a small letter is no place but a file of the machine's own: localtime, posixrules.
    return frozenset(name for name in available_timezones() if name[:1].isupper() and name != "Factory")


def _zone(name: str) -> str:
    known = _zone_names()
    if name in known:
        return name
    by_small = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.replace(" ", "_").lower(), by_small, n=1, cutoff=0.5)
    hint = f"did you mean {by_small[near[0]]!r}?" if near else "such as Europe/Berlin, or UTC"
    raise ValueError(f"is not the IANA name of a time zone; {hint}")


def _moment(text: str) -> str:
    """In UTC, however it was given."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_TOLD["start",]) from None
    if given.tzinfo is None or given.year not in YEARS:
        raise ValueError(f"{_TOLD['start',]}, from {YEARS[0]} to {YEARS[-1]}")
    return rfc3339(given.timestamp())


Moment = Annotated[str, AfterValidator(_moment)]
Seconds = Annotated[int, Field(ge=0), WHOLE]


class ScheduleSpec(SpecPart):
    """See the contract. ``target`` is resolved by kind; ``start`` and ``end`` are inclusive, in UTC."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    cron: Annotated[str, Field(max_length=200), AfterValidator(_cron)]
    time_zone: Annotated[str, Field(max_length=64), AfterValidator(_zone)]
    target: dict[str, JsonValue]
    overlap: Annotated[Overlap, Field(strict=False)] = Overlap.SKIP
    catchup_window_s: Annotated[Seconds, Field(le=MAX_CATCHUP_S)] = 3600
    jitter_s: Annotated[Seconds, Field(le=DAY_S)] = 0
    start: Moment | None = None
    end: Moment | None = None
    pause_after_failures: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = 3

    @property
    def zone(self) -> ZoneInfo:
        """The zone in which ``cron`` is meant."""
        return ZoneInfo(self.time_zone)

    def nominal_times(self, after_s: float) -> Iterator[float]:
        """Nominal times later than ``after_s``, in order, in Unix seconds."""
        first_s, last_s = unix(self.start), unix(self.end)
        after = datetime.fromtimestamp(after_s, UTC)
        if first_s is not None and first_s > after_s:
            after = datetime.fromtimestamp(first_s, UTC) - timedelta(seconds=1)
        for moment in Cron(self.cron).moments(self.zone, after):
            if last_s is not None and moment.timestamp() > last_s:
                return
            if first_s is None or moment.timestamp() >= first_s:
                yield moment.timestamp()


def unix(moment: str | None) -> float | None:
    """A time of the spec in Unix seconds."""
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def parse_schedule_spec(
    document: object, now_s: float, *, has_prices: bool = False, configuration: ConfigurationRow | None = None
) -> tuple[ScheduleSpec, Target]:
    """Read a schedule spec from parsed YAML or JSON; what it starts is in it with every default.

    Raises SpecError with every problem found, also that it cannot fire any more at ``now_s``; its code is
    NOT_AVAILABLE where all that is wrong is that a value is not built yet. ``has_prices``, ``configuration``: as of
    ``read_sweep_spec``.
    """
    if not isinstance(document, Mapping):
        seen = type(document).__name__
        raise SpecError([FieldProblem("", f"a schedule spec is a mapping, this is a {seen}; see the README")])
    try:
        spec = ScheduleSpec.model_validate(document)
    except ValidationError as error:
        found = problems_of(error, document, ScheduleSpec, _TOLD, hidden="target")
        raise SpecError([*found, *_target_problems(document.get("target"), has_prices, configuration)]) from None
    target = read_target(spec.target, spec.name, has_prices=has_prices, configuration=configuration)
    if problem := _never_fires(spec, now_s):
        raise SpecError([problem])
    return spec.model_copy(update={"target": target.document}), target


def _target_problems(
    given: object, has_prices: bool, configuration: ConfigurationRow | None
) -> tuple[FieldProblem, ...]:
    try:
        if isinstance(given, Mapping):
            read_target(given, "schedule", has_prices=has_prices, configuration=configuration)
    except SpecError as error:
        return error.problems
    return ()


def _never_fires(spec: ScheduleSpec, now_s: float) -> FieldProblem | None:
    if next(spec.nominal_times(now_s), None) is not None:
        return None
    if spec.start and spec.end and spec.start > spec.end:
        return FieldProblem("/end", f"{spec.end} is before start={spec.start}; give a later one")
    begin = max(spec.start or "", rfc3339(now_s))
    return FieldProblem(
        "/end", f"{spec.cron!r} has no time from {begin} until end={spec.end}; give a later end, or leave it out"
    )

"""Making, changing and asking about schedules: use cases without HTTP, SQL or Ray."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile

from service.configurations import Configurations
from service.cost import Prices
from service.documents import Document
from service.errors import BadRequestError, ConflictError, InvalidError, NotFoundError
from service.firing import decide_trigger, first_upcoming
from service.idempotency import read_key, refused_key
from service.ids import SCHEDULE_ID
from service.jobs import MAX_TRIES
from service.missing_references import UNKNOWN, missing_reference
from service.page_tokens import DEFAULT_PAGE_SIZE, PageTokens
from service.patience import answered
from service.preconditions import check_match
from service.schedule_documents import run_document
from service.schedule_records import RunRow, ScheduleRow, ScheduleState, Upcoming
from service.schedule_spec import DAY_S, ScheduleSpec, parse_schedule_spec
from service.store.keys import KeyReusedError, KeySpentError
from service.store.port import StaleRowError
from service.store.schedules import Created, NameTakenError, ScheduleFilter, ScheduleStore
from service.sweep_limits import cost_problem
from service.targets import Target, configuration_of
from service.times import rfc3339
from service.zone_changes import notices
from tuning.spec import SweepSpec
from workers.errors import FieldProblem, SpecError
from workers.storage_urls import open_storage

MAX_UPCOMING = 100
BY_HAND = "paused by hand"


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """One page of a list, shorter than asked for where specs are large; ``next_page_token`` is None on the last."""

    schedules: list[ScheduleRow]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of a history; ``next_page_token`` is None on the last."""

    runs: list[RunRow]
    next_page_token: str | None


class Schedules:
    """``wake`` tells that something was written; ``clock`` gives Unix seconds."""

    def __init__(
        self,
        store: ScheduleStore,
        configurations: Configurations,
        storage: str,
        tokens: PageTokens,
        prices: Prices,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._configurations = configurations
        self._storage = storage
        self._tokens = tokens
        self._prices = prices
        self._clock = clock
        self._wake = wake

    async def create(self, document: object, key: str | None = None) -> Created:
        """Store a schedule; with a key that was used for the same document, find that schedule.

        Raises BadRequestError for a malformed key, InvalidError for a bad spec or a key used for another
        document, ConflictError for a name that is taken, or when the key's schedule was deleted.
        """
        checked = read_key(key, "POST /schedules", document)
        spec, target = await self._parsed(document)
        try:
            created = await self._store.create(spec, target, checked)
        except (KeyReusedError, KeySpentError) as error:
            raise refused_key(str(key), error) from None
        except (*UNKNOWN, NameTakenError) as error:
            raise _refused(error, spec, target) from None
        if created.is_new:
            self._wake()
        return created

    async def validate(self, document: object) -> Document:
        """The resolved spec with every default; nothing is stored. Raises InvalidError."""
        spec, target = await self._parsed(document)
        try:
            await self._store.check_references(target)
        except UNKNOWN as error:
            raise _refused(error, spec, target) from None
        return spec.model_dump(mode="json")

    async def get(self, schedule_id: str) -> ScheduleRow:
        """One schedule. Raises NotFoundError."""
        found = await self._store.schedule(schedule_id) if SCHEDULE_ID.fullmatch(schedule_id) else None
        if found is None:
            raise NotFoundError(f"there is no schedule {schedule_id[:80]!r}; GET /api/v1/schedules lists them")
        return found

    async def page(
        self,
        state: str | None = None,
        search: str | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        page_token: str | None = None,
    ) -> SchedulePage:
        """A page of schedules, newest first. Raises BadRequestError for a bad filter or token."""
        if state is not None and state not in ScheduleState.__members__:
            raise BadRequestError(f"state {state[:40]!r} is unknown; known: {', '.join(ScheduleState)}")
        wanted = ScheduleFilter(state=ScheduleState(state) if state else None, search=search or None)
        described = f"schedules {wanted!r}"
        fetch = partial(self._store.page, wanted)
        return SchedulePage(
            *await self._tokens.bounded_page(described, page_size, page_token, fetch, lambda row: row.id)
        )

    async def upcoming(self, schedule_id: str, count: int) -> Document:
        """The next nominal times, and what changes of the clocks do to them; of a paused one those if it went on.

        Raises NotFoundError.
        """
        row = await self.get(schedule_id)
        if row.state is ScheduleState.ENDED:
            return {"times": [], "notices": []}
        now_s = self._clock()
        # What is due and not decided yet is still to come.
        after_s = now_s if row.upcoming is None else min(now_s, row.upcoming.nominal_at - 1)
        times = islice(row.spec.nominal_times(after_s), max(0, min(count, MAX_UPCOMING)))
        return {"times": [rfc3339(time_s) for time_s in times], "notices": notices(row.spec, now_s)}

    async def runs(
        self, schedule_id: str, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> RunPage:
        """What became of nominal times, the latest first. Raises NotFoundError, BadRequestError for a bad token."""
        await self.get(schedule_id)
        described = f"runs {schedule_id}"

        async def fetch(most: int, behind: str | None) -> list[RunRow]:
            return await self._store.runs(schedule_id, most, None if behind is None else float(behind))

        return RunPage(
            *await self._tokens.page(described, page_size, page_token, fetch, lambda run: repr(run.nominal_at))
        )

    async def latest_runs(self, schedule_ids: Sequence[str]) -> dict[str, RunRow]:
        """What became of the latest nominal time of each, by the schedule's id."""
        return await self._store.latest_runs(schedule_ids)

    async def replace(self, schedule_id: str, document: object, *, if_match: str | None = None) -> ScheduleRow:
        """Exchange the spec. What had come under the old one and is not decided yet is decided under the new one.

        Raises NotFoundError, PreconditionError, InvalidError, ConflictError for a name that is taken.
        """
        spec, target = await self._parsed(document)

        async def decide(row: ScheduleRow) -> ScheduleRow:
            try:
                replaced = await self._store.replace(row, spec, target, _upcoming(row, spec, self._clock()))
            except (*UNKNOWN, NameTakenError) as error:
                raise _refused(error, spec, target) from None
            await self._clear(replaced.bundle_key)
            return replaced.schedule

        return await self._change(schedule_id, if_match, decide)

    async def pause(self, schedule_id: str, *, if_match: str | None = None) -> ScheduleRow:
        """It starts nothing until it is resumed. Raises NotFoundError, PreconditionError, ConflictError."""

        async def decide(row: ScheduleRow) -> ScheduleRow:
            if row.state is ScheduleState.ENDED:
                raise ConflictError("a schedule that is ENDED starts nothing any more", code="ILLEGAL_TRANSITION")
            return row if row.state is ScheduleState.PAUSED else await self._store.pause(row, BY_HAND)

        return await self._change(schedule_id, if_match, decide)

    async def resume(self, schedule_id: str, *, if_match: str | None = None) -> ScheduleRow:
        """Go on from now; nominal times that passed meanwhile are not made good.

        Raises NotFoundError, PreconditionError, ConflictError.
        """

        async def decide(row: ScheduleRow) -> ScheduleRow:
            if row.state is ScheduleState.ENDED:
                raise ConflictError(
                    "a schedule that is ENDED has no time left; replace it with a later end", code="ILLEGAL_TRANSITION"
                )
            if row.state is ScheduleState.ACTIVE:
                return row
            return await self._store.resume(row, first_upcoming(row.spec, row.id, self._clock()))

        return await self._change(schedule_id, if_match, decide)

    async def trigger(self, schedule_id: str, key: str | None = None) -> Document:
        """Run it now, by its own rule of overlap; the run. Raises NotFoundError, BadRequestError, InvalidError."""
        checked = read_key(key, f"POST /schedules/{schedule_id}/trigger"[:64], None)
        for _ in range(MAX_TRIES):
            await self.get(schedule_id)
            due = await self._store.due(schedule_id)
            if due is None:
                continue
            try:
                nominal_s = await self._store.fire(due.schedule, decide_trigger(due, self._clock()), checked)
            except StaleRowError:
                continue
            except (KeyReusedError, KeySpentError) as error:
                raise refused_key(str(key), error) from None
            self._wake()
            found = await self._store.runs(schedule_id, 1, math.nextafter(nominal_s, math.inf))
            if not found or found[0].nominal_at != nominal_s:
                raise ConflictError(f"the run that Idempotency-Key {key!r} made is gone; take a new key")
            return run_document(found[0])
        raise ConflictError(f"{schedule_id} kept changing meanwhile; try again")

    async def delete(self, schedule_id: str, *, if_match: str | None = None) -> None:
        """Remove it with its history; jobs that it started stay. Raises NotFoundError, PreconditionError."""

        async def decide(row: ScheduleRow) -> ScheduleRow:
            deleted = await self._store.delete(row)
            await self._clear(deleted.bundle_key)
            self._wake()
            return row

        await self._change(schedule_id, if_match, decide)

    async def _clear(self, bundle_key: str | None) -> None:
        if bundle_key is not None:
            with contextlib.suppress(OSError):
                await answered(partial(open_storage(self._storage).delete, bundle_key))

    async def _parsed(self, document: object) -> tuple[ScheduleSpec, Target]:
        name = configuration_of(document.get("target")) if isinstance(document, Mapping) else None
        found = None if name is None else await self._configurations.find(name)
        try:
            has_prices = self._prices.are_set
            spec, target = parse_schedule_spec(document, self._clock(), has_prices=has_prices, configuration=found)
            if isinstance(target.spec, SweepSpec) and (problem := cost_problem(target.spec, self._prices)):
                raise SpecError([FieldProblem(f"/target/{target.kind}{problem.pointer}", problem.detail)])
            return spec, target
        except SpecError as error:
            raise InvalidError("the spec is refused", error.problems, code=error.code) from None

    async def _change(
        self, schedule_id: str, if_match: str | None, decide: Callable[[ScheduleRow], Awaitable[ScheduleRow]]
    ) -> ScheduleRow:
        for _ in range(MAX_TRIES):
            row = await self.get(schedule_id)
            check_match(row.etag, if_match)
            try:
                changed = await decide(row)
            except StaleRowError:
                continue
            if changed is not row:
                self._wake()
            return changed
        raise ConflictError(f"{schedule_id} kept changing meanwhile; try again")


def _upcoming(row: ScheduleRow, spec: ScheduleSpec, now_s: float) -> Upcoming | None:
    """What is upcoming once the row has another spec.

    A nominal time that has come, and is due later by its jitter, is due as the new spec has it; where that has no such
    time, it is due as before, or before the next one comes. Of times that only the new spec has none before now is
    started besides: that one run has the name of the last of them.
    """
    here = row.upcoming
    if here is not None and _has_same_times(row.spec, spec):
        return here
    following = first_upcoming(spec, row.id, now_s)
    if here is None or here.nominal_at > now_s:
        return following
    found = first_upcoming(spec, row.id, here.nominal_at - 1)
    due_s = found.due_at if found is not None and found.nominal_at == here.nominal_at else here.due_at
    passed = takewhile(lambda at_s: at_s <= now_s, spec.nominal_times(max(here.nominal_at, now_s - DAY_S)))
    nominal_s = max(passed, default=here.nominal_at)
    due_s = max(due_s, now_s) if here.due_at > now_s else here.due_at
    return Upcoming(nominal_s, due_s if following is None else min(due_s, following.nominal_at - 1))


def _has_same_times(one: ScheduleSpec, other: ScheduleSpec) -> bool:
    names = ("cron", "time_zone", "start", "end", "jitter_s")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _refused(error: Exception, spec: ScheduleSpec, target: Target) -> InvalidError | ConflictError:
    if isinstance(error, NameTakenError):
        return ConflictError(
            f"schedule {error} has the name {spec.name!r} already; choose another name, or replace that one",
            code="NAME_TAKEN",
        )
    problem = missing_reference(error, target.spec)
    return InvalidError(
        "the spec is refused", [FieldProblem(f"/target/{target.kind}{problem.pointer}", problem.detail)]
    )

"""Making, steering and asking about sweeps: use cases without HTTP, SQL or Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from service.configuration_records import Origin
from service.configurations import Configurations
from service.cost import Prices
from service.documents import Document
from service.errors import BadRequestError, ConflictError, InvalidError, NotFoundError
from service.going_on import fails_always, way_on
from service.idempotency import read_key, refused_key
from service.ids import SWEEP_ID
from service.jobs import MAX_TRIES
from service.missing_references import UNKNOWN, missing_reference
from service.page_tokens import DEFAULT_PAGE_SIZE, PageTokens
from service.preconditions import check_match
from service.promotion_documents import promotion_document
from service.promotion_records import PromotionState
from service.promotion_requests import check_configuration, given_name, is_new, usual_name, wanted_name
from service.records import ListPart
from service.store.keys import KeyReusedError, KeySpentError
from service.store.port import StaleRowError, TransitionError
from service.store.sweeps import Created, Standing, SweepFilter, SweepStore
from service.sweep_documents import estimate_document, sweep_document
from service.sweep_limits import cost_problem, limit_of_ended
from service.sweep_records import ENDED_SWEEPS, SweepRow, SweepState, SweepView, TrialRow
from service.sweep_report import report_document
from service.sweep_specs import read_sweep_spec, sample_job
from tuning.parsing import wanted_configuration
from tuning.space import space_of
from tuning.spec import SweepSpec
from tuning.spec_parts import MAX_TRIALS
from tuning.trial import TrialState
from workers.errors import FieldProblem, SpecError
from workers.spec import JobSpec

_MOVES: Mapping[str, tuple[frozenset[SweepState], SweepState, str | None]] = {
    "pause": (frozenset({SweepState.RUNNING}), SweepState.PAUSED, "paused by hand"),
    "resume": (frozenset({SweepState.PAUSED}), SweepState.RUNNING, None),
    "stop": (frozenset({SweepState.RUNNING, SweepState.PAUSED}), SweepState.STOPPED, "stopped by hand"),
}
"""From which states to which, and why."""


@dataclass(frozen=True, slots=True)
class SweepPage:
    """One page of a list, shorter than asked for where specs are large; ``next_page_token`` is None on the last."""

    sweeps: list[SweepRow]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class TrialPage:
    """One page of a sweep's trials, shorter than asked for where those are large; no token on the last."""

    trials: list[TrialRow]
    next_page_token: str | None


class Sweeps:
    """``wake`` tells the reconciler that there is something new to look at; it must not block."""

    def __init__(
        self,
        store: SweepStore,
        configurations: Configurations,
        tokens: PageTokens,
        prices: Prices,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._configurations = configurations
        self._tokens = tokens
        self._prices = prices
        self._wake = wake

    async def create(self, document: object, key: str | None = None) -> Created:
        """Store a sweep that runs; with a key that was used for the same document, find that sweep.

        Raises BadRequestError for a malformed key, InvalidError for a bad spec or a key used for another
        document, ConflictError when the key's sweep is gone.
        """
        checked = read_key(key, "POST /sweeps", document)
        spec, job, origin = await self._read(document)
        try:
            created = await self._store.create(spec, job, checked, origin)
        except (KeyReusedError, KeySpentError) as error:
            raise refused_key(str(key), error) from None
        except UNKNOWN as error:
            raise InvalidError("the spec is refused", [missing_reference(error, spec)]) from None
        if created.is_new:
            self._wake()
        return created

    async def validate(self, document: object) -> Document:
        """The resolved spec with every default; nothing is stored. Raises InvalidError."""
        spec, _ = await self._checked(document)
        return spec.model_dump(mode="json")

    async def estimate(self, document: object) -> Document:
        """What the sweep of a spec would cost, from what earlier jobs of its code did. Raises InvalidError."""
        spec, job = await self._checked(document)
        known = await self._store.experience(job)
        promoted = None if spec.promote is None else await self._configurations.find(spec.promote)
        return await asyncio.to_thread(estimate_document, spec, known, job.resources, self._prices, promoted)

    async def get(self, sweep_id: str) -> SweepRow:
        """One sweep. Raises NotFoundError."""
        found = await self._store.sweep(sweep_id) if SWEEP_ID.fullmatch(sweep_id) else None
        if found is None:
            raise _not_found(sweep_id)
        return found

    async def documents(self, rows: Sequence[SweepRow]) -> list[Document]:
        """These sweeps as users see them."""
        standings = await self._store.standings(rows)
        return [sweep_document(row, standings[row.id]) for row in rows]

    async def view(self, sweep_id: str) -> SweepView:
        """One sweep with all its trials. Raises NotFoundError."""
        found = await self._store.view(sweep_id) if SWEEP_ID.fullmatch(sweep_id) else None
        if found is None:
            raise _not_found(sweep_id)
        return found

    async def report(self, sweep_id: str) -> Document:
        """What it found so far. Raises NotFoundError."""
        view = await self.view(sweep_id)
        standing = (await self._standing(view.sweep)).promotion
        report = await asyncio.to_thread(report_document, view, self._prices)
        return {**report, "promotion": promotion_document(view.sweep, standing)}

    async def page(
        self,
        state: str | None = None,
        search: str | None = None,
        schedule: str | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        page_token: str | None = None,
    ) -> SweepPage:
        """A page of sweeps, newest first. Raises BadRequestError for a bad filter or token."""
        if state is not None and state not in SweepState.__members__:
            raise BadRequestError(f"state {state[:40]!r} is unknown; known: {', '.join(SweepState)}")
        wanted = SweepFilter(
            state=SweepState(state) if state else None, search=search or None, schedule=schedule or None
        )
        described = f"sweeps {wanted!r}"
        fetch = partial(self._store.page, wanted)
        return SweepPage(*await self._tokens.bounded_page(described, page_size, page_token, fetch, lambda row: row.id))

    async def trials(
        self,
        sweep_id: str,
        state: str | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        page_token: str | None = None,
    ) -> TrialPage:
        """A page of its trials by number. Raises NotFoundError, BadRequestError for a bad filter or token."""
        if state is not None and state not in TrialState.__members__:
            raise BadRequestError(f"state {state[:40]!r} is unknown; known: {', '.join(TrialState)}")
        await self.get(sweep_id)
        described = f"trials {sweep_id} {state}"

        async def fetch(most: int, behind: str | None) -> ListPart[TrialRow]:
            after = -1 if behind is None else int(behind)
            return await self._store.trials(sweep_id, most, after, TrialState(state) if state else None)

        return TrialPage(
            *await self._tokens.bounded_page(described, page_size, page_token, fetch, lambda trial: str(trial.number))
        )

    async def command(self, sweep_id: str, verb: str, *, if_match: str | None = None) -> SweepRow:
        """``pause``, ``resume`` or ``stop`` it. Raises NotFoundError, PreconditionError, ConflictError."""
        sources, to, reason = _MOVES[verb]

        async def decide(row: SweepRow) -> SweepRow:
            promotion = await self._promotion(row) if verb == "stop" and row.state in ENDED_SWEEPS else None
            if promotion in (PromotionState.WAITING, PromotionState.RUNNING):
                return await self._store.stop_promotion(row, "stopped by hand")
            if row.state is to or promotion is PromotionState.STOPPED:
                return row
            if row.state not in sources:
                hint = f"; {await self._way_on(row)}" if row.state in ENDED_SWEEPS else ""
                known = ", ".join(sorted(sources))
                told = f"a sweep that is {row.state} cannot {verb}; this works from {known}{hint}"
                raise ConflictError(told, code="ILLEGAL_TRANSITION")
            return await self._store.move(row, to, reason)

        return await self._change(sweep_id, if_match, decide)

    async def extend(self, sweep_id: str, document: object, *, if_match: str | None = None) -> SweepRow:
        """Allow more trials in all; one that had ended goes on.

        Raises NotFoundError, PreconditionError, InvalidError for a number that allows none, ConflictError where a
        limit is reached.
        """
        wanted = _wanted_trials(document)

        async def decide(row: SweepRow) -> SweepRow:
            count = space_of(row.spec.space).count()
            if count is not None and row.num_trials >= count:
                told = f"the space has {count:,} points, and all of them may be tried already (seen: {wanted})"
                raise _refused_number(f"{told}; make a sweep with a wider space")
            if wanted <= row.num_trials:
                told = f"{wanted} is not above the {row.num_trials:,} trials that it may have"
                raise _refused_number(f"{told}; give how many it shall have in all")
            if (kind := row.spec.population) is not None and wanted > (most := min(row.spec.parallel, count or wanted)):
                told = f"{kind} trains all its trials at once, each from another point, and of {wanted} not more than"
                raise _refused_number(f"{told} {most:,} could; make a sweep with more parallel trials or a wider space")
            await self._check_limits(row, is_extended=True)
            return await self._store.extend(row, wanted)

        return await self._change(sweep_id, if_match, decide)

    async def retry_failed(self, sweep_id: str, *, if_match: str | None = None) -> SweepRow:
        """Let trials that failed go on from their last checkpoints; a sweep that had ended goes on with them.

        Raises NotFoundError, PreconditionError, ConflictError where none can, or a limit is reached.
        """

        async def decide(row: SweepRow) -> SweepRow:
            standing = (await self._store.standings([row]))[row.id]
            if row.state in ENDED_SWEEPS and standing.counts.waiting + standing.counts.running:
                raise ConflictError("its last trials are just being ended; try again in a moment")
            if standing.counts.failed:
                await self._check_limits(row)
            retried, number = await self._store.retry_failed(row)
            if not number:
                seen = standing.counts.failed
                told = (
                    f"{seen} of its trials failed and none of them has a job that can go on" if seen else "none failed"
                )
                hint = await self._way_on(row, can_retry=False)
                raise ConflictError(f"there is no trial to retry: {told}; {hint}")
            return retried

        return await self._change(sweep_id, if_match, decide)

    async def promote(self, sweep_id: str, document: object, *, if_match: str | None = None) -> SweepRow:
        """Hold its winner against a configuration once it has ended; replace that if it is better, or the cheaper.

        Raises NotFoundError, PreconditionError, InvalidError for what names no configuration, ConflictError where
        there is nothing to compare, nothing new, or what was changed meanwhile would be undone.
        """

        given = given_name(document)

        async def decide(row: SweepRow) -> SweepRow:
            name = wanted_name(given, row)
            configuration = check_configuration(name, await self._configurations.find(name))
            view, standing = await self.view(row.id), await self._standing(row)
            if not await asyncio.to_thread(is_new, view, standing, configuration, self._prices):
                return row
            return await self._store.ask_promotion(row, name)

        return await self._change(sweep_id, if_match, decide)

    async def usual_name(self, row: SweepRow) -> str | None:
        """The configuration that a page offers to hold its winner against, where anything can be."""
        return usual_name(row, await self._standing(row))

    async def promotable(self, view: SweepView) -> str | None:
        """The same, None while it goes on, and where ``promote`` would refuse it or has nothing to do."""
        if view.sweep.state not in ENDED_SWEEPS:
            return None
        standing = await self._standing(view.sweep)
        name = usual_name(view.sweep, standing)
        configuration = None if name is None else await self._configurations.find(name)
        if configuration is None:
            return None
        try:
            is_left = await asyncio.to_thread(is_new, view, standing, configuration, self._prices)
        except ConflictError:
            return None
        return name if is_left else None

    async def _check_limits(self, row: SweepRow, *, is_extended: bool = False) -> None:
        """Raises ConflictError where one that has ended would do so again before it did anything."""
        if row.state not in ENDED_SWEEPS:
            return
        view = await self.view(row.id)
        if is_extended and fails_always(view):
            told = f"all {len(view.trials)} trials failed, so it would end again at once"
            raise ConflictError(f"{told}; see to the cause and retry its failed trials, or make another sweep")
        reached = await asyncio.to_thread(limit_of_ended, view, self._prices)
        if reached is not None:
            told = f"it would end again at once: {reached}; limits stay as they are, so make a sweep with wider ones"
            raise ConflictError(f"{told}, and warm_start: [{row.id}] lets it begin from what this one found")

    async def _way_on(self, row: SweepRow, *, can_retry: bool = True) -> str:
        """What a refusal ends with; ``can_retry`` where none of its failed trials is known to be beyond that."""
        view = await self.view(row.id)
        has_failed = any(trial.state is TrialState.FAILED for trial in view.trials)
        return await asyncio.to_thread(way_on, view, self._prices, can_retry=can_retry and has_failed)

    async def _standing(self, row: SweepRow) -> Standing:
        return (await self._store.standings([row]))[row.id]

    async def _promotion(self, row: SweepRow) -> PromotionState | None:
        """How the one that comes, goes on or was the last stands; None where there was none."""
        standing = (await self._standing(row)).promotion
        last = None if standing is None else standing.promotion.state
        return last if row.promote_to is None else PromotionState.WAITING

    async def _read(self, document: object) -> tuple[SweepSpec, JobSpec, Origin | None]:
        name = wanted_configuration(document)
        found = None if name is None else await self._configurations.find(name)

        def read() -> tuple[SweepSpec, JobSpec]:
            spec = read_sweep_spec(document, has_prices=self._prices.are_set, configuration=found)
            if problem := cost_problem(spec, self._prices):
                raise SpecError([problem])
            return spec, sample_job(spec)

        try:
            return *await asyncio.to_thread(read), None if found is None else Origin(found.name, found.version)
        except SpecError as error:
            raise InvalidError("the spec is refused", error.problems, code=error.code) from None

    async def _checked(self, document: object) -> tuple[SweepSpec, JobSpec]:
        spec, job, _ = await self._read(document)
        try:
            await self._store.check_references(spec, job)
        except UNKNOWN as error:
            raise InvalidError("the spec is refused", [missing_reference(error, spec)]) from None
        return spec, job

    async def _change(
        self, sweep_id: str, if_match: str | None, decide: Callable[[SweepRow], Awaitable[SweepRow]]
    ) -> SweepRow:
        for _ in range(MAX_TRIES):
            row = await self.get(sweep_id)
            check_match(row.etag, if_match)
            try:
                changed = await decide(row)
            except (StaleRowError, TransitionError):
                continue
            if changed is not row:
                self._wake()
            return changed
        raise ConflictError(f"{sweep_id} kept changing meanwhile; try again")


def _not_found(sweep_id: str) -> NotFoundError:
    return NotFoundError(f"there is no sweep {sweep_id[:80]!r}; GET /api/v1/sweeps lists them")


def _wanted_trials(document: object) -> int:
    if not isinstance(document, Mapping):
        raise InvalidError("the body is refused", [FieldProblem("", "give {trials: N}, how many it shall have in all")])
    if unknown := [key for key in document if key != "trials"]:
        raise InvalidError(
            "the body is refused", [FieldProblem(f"/{unknown[0]}"[:80], "is unknown here; known: trials")]
        )
    wanted = document.get("trials")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= MAX_TRIALS:
        raise _refused_number(f"must be a whole number from 1 to {MAX_TRIALS:,} (seen: {wanted!r:.40})")
    return wanted


def _refused_number(told: str) -> InvalidError:
    return InvalidError("the number is refused", [FieldProblem("/trials", told)])

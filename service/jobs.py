"""Submitting, listing and commanding jobs: use cases without HTTP, SQL or Ray."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from service.documents import Document, event_document
from service.errors import BadRequestError, ConflictError, InvalidError, NotFoundError
from service.folders import job_place
from service.idempotency import read_key, refused_key
from service.ids import JOB_ID
from service.labels import parse_given_job
from service.page_tokens import DEFAULT_PAGE_SIZE, PageTokens
from service.patience import answered
from service.preconditions import check_match
from service.records import JobFilter, JobRow, Scale
from service.scaling import read_scale
from service.states import Already, Illegal, JobState, Verb, command
from service.store.jobs import JobStore, Owner, Submitted
from service.store.keys import KeyReusedError, KeySpentError
from service.store.port import StaleRowError, TransitionError
from service.store.references import UnknownReferenceError
from workers.errors import SpecError
from workers.spec import JobSpec
from workers.storage_urls import open_storage

MAX_EVENTS = 10_000
MAX_TRIES = 8
"""Of a change that another writer got ahead of; each try decides anew on the fresh row."""

GOES_ON = "the job goes on from its last checkpoint already; cancel it, and retry it from the start then"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """What a list of jobs asks for, as typed: states and ``key=value`` or ``key:value`` labels."""

    states: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    name: str | None = None
    search: str | None = None
    page_size: int = DEFAULT_PAGE_SIZE
    page_token: str | None = None


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list, shorter than asked for where specs are large; ``next_page_token`` is None on the last."""

    jobs: list[JobRow]
    next_page_token: str | None


class Jobs:
    """``wake`` tells the reconciler that there is something new to look at; it must not block."""

    def __init__(self, store: JobStore, storage: str, tokens: PageTokens, wake: Callable[[], None]) -> None:
        self._store = store
        self._storage = storage
        self._tokens = tokens
        self._wake = wake

    async def submit(self, document: object, key: str | None = None) -> Submitted:
        """Store a job; with a key that was used for the same document, find that job.

        Raises BadRequestError for a malformed key, InvalidError for a bad spec or a key used for
        another document, ConflictError when the key's job was deleted.
        """
        checked = read_key(key, "POST /jobs", document)
        spec = _parsed(document)
        try:
            submitted = await self._store.submit(spec, checked)
        except UnknownReferenceError as error:
            raise InvalidError("the spec is refused", [error.problem]) from None
        except (KeyReusedError, KeySpentError) as error:
            raise refused_key(str(key), error) from None
        if submitted.is_new:
            self._wake()
        return submitted

    async def validate(self, document: object) -> Document:
        """The resolved spec with every default; nothing is stored. Raises InvalidError."""
        spec = _parsed(document)
        try:
            await self._store.check_references(spec)
        except UnknownReferenceError as error:
            raise InvalidError("the spec is refused", [error.problem]) from None
        resolved: Document = json.loads(spec.model_dump_json())
        return resolved

    async def get(self, job_id: str) -> JobRow:
        """One job. Raises NotFoundError."""
        job = await self._store.job(job_id) if JOB_ID.fullmatch(job_id) else None
        if job is None:
            raise NotFoundError(f"there is no job {job_id[:80]!r}; GET /api/v1/jobs lists them")
        return job

    async def page(self, query: ListQuery) -> JobPage:
        """A page of jobs, newest first. Raises BadRequestError for a bad filter or token."""
        wanted = _filter(query)
        described = repr((sorted(wanted.states), sorted(wanted.labels.items()), wanted.name, wanted.search))
        fetch = partial(self._store.page, wanted)
        return JobPage(
            *await self._tokens.bounded_page(described, query.page_size, query.page_token, fetch, lambda row: row.id)
        )

    async def count_by_state(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        return await self._store.count_by_state()

    async def events(self, job_id: str, after: int = 0) -> list[Document]:
        """State transitions after ``after``, oldest first. Raises NotFoundError."""
        await self.get(job_id)
        return [event_document(event) for event in await self._store.events(job_id, after, MAX_EVENTS)]

    async def command(
        self, job_id: str, verb: Verb, *, if_match: str | None = None, from_start: bool = False
    ) -> JobRow:
        """Cancel, pause, resume or retry. Raises NotFoundError, PreconditionError, ConflictError.

        A job that a sweep has counted as ended is not retried beside its books.
        """

        async def decide(job: JobRow) -> JobRow:
            wanted = command(verb, job.state, job.attempt)
            if isinstance(wanted, Illegal):
                raise ConflictError(wanted.detail, code="ILLEGAL_TRANSITION")
            if isinstance(wanted, Already):
                if from_start and await self._store.has_saved(job):
                    raise ConflictError(GOES_ON, code="ILLEGAL_TRANSITION")
                return job
            if verb is Verb.RETRY and (owner := await self._store.owner(job_id)) is not None:
                raise ConflictError(_not_retried(owner), code="ILLEGAL_TRANSITION")
            return await self._store.command(job, wanted, is_fresh_start=from_start)

        return await self._change(job_id, if_match, decide)

    async def scale(self, job_id: str, document: object, *, if_match: str | None = None) -> JobRow:
        """Wish for a size; see ``read_scale``.

        Raises NotFoundError, PreconditionError, InvalidError, ConflictError for a job that is ending or ended.
        """

        async def decide(job: JobRow) -> JobRow:
            wanted: Scale = read_scale(document, job)
            if job.is_ended or job.state is JobState.CANCELLING:
                raise ConflictError(f"a job that is {job.state} has no size; retry it first", code="ILLEGAL_TRANSITION")
            return job if wanted == job.scale else await self._store.set_scale(job, wanted)

        # What no version of the job would take is refused as that, also where the version is not the one meant.
        read_scale(document, await self.get(job_id))
        return await self._change(job_id, if_match, decide)

    async def delete(self, job_id: str, *, if_match: str | None = None) -> None:
        """Remove an ended job with its files. Raises NotFoundError, PreconditionError, ConflictError."""

        async def decide(job: JobRow) -> JobRow:
            if not job.is_ended:
                raise ConflictError(f"the job is {job.state}; cancel it, and delete it once it has ended")
            deleted = await self._store.delete(job)
            # Rows first: what a crash leaves on disk then belongs to no job, and the reconciler removes it.
            with contextlib.suppress(OSError):
                await answered(partial(self._clear, job.id, deleted.bundle_key))
            return job

        await self._change(job_id, if_match, decide)

    def _clear(self, job_id: str, bundle_key: str | None) -> None:
        open_storage(job_place(self._storage, job_id)).clear()
        if bundle_key is not None:
            open_storage(self._storage).delete(bundle_key)

    async def _change(self, job_id: str, if_match: str | None, decide: Callable[[JobRow], Awaitable[JobRow]]) -> JobRow:
        for _ in range(MAX_TRIES):
            job = await self.get(job_id)
            check_match(job.etag, if_match)
            try:
                changed = await decide(job)
            except (StaleRowError, TransitionError):
                continue
            if changed is not job:
                self._wake()
            return changed
        raise ConflictError(f"{job_id} kept changing meanwhile; try again")


def _not_retried(owner: Owner) -> str:
    if owner.number is None:
        return f"the job was run for the promotion of {owner.sweep_id}, which has counted it; promote again instead"
    told = f"the job is trial {owner.number} of {owner.sweep_id}, which says what goes on"
    return f"{told}; POST /api/v1/sweeps/{owner.sweep_id}/retry-failed tries its failed trials again"


def _parsed(document: object) -> JobSpec:
    try:
        return parse_given_job(document)
    except SpecError as error:
        raise InvalidError("the spec is refused", error.problems, code=error.code) from None


def _filter(query: ListQuery) -> JobFilter:
    named = [part.strip() for text in query.states for part in text.split(",") if part.strip()]
    if unknown := [name for name in named if name not in JobState.__members__]:
        raise BadRequestError(f"state {unknown[0][:40]!r} is unknown; known: {', '.join(JobState)}")
    return JobFilter(
        states=frozenset(JobState(name) for name in named),
        labels=_labels(query.labels),
        name=query.name or None,
        search=query.search or None,
    )


def _labels(texts: tuple[str, ...]) -> Mapping[str, Any]:
    labels: dict[str, str] = {}
    for text in texts:
        # A label's key may hold a colon and its value anything: the first "=" divides, else the first ":".
        divider = "=" if "=" in text else ":"
        key, found, value = text.partition(divider)
        if not found or not key:
            raise BadRequestError(f"label {text[:80]!r} must be key=value")
        labels[key] = value
    return labels

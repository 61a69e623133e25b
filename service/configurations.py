"""Making, changing and asking about configurations: use cases without HTTP, SQL or Ray."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from service.configuration_records import ConfigurationRow, ConfigurationView, ReplacedVersion, nameless
from service.errors import ConflictError, InvalidError, NotFoundError, PreconditionError
from service.jobs import MAX_TRIES
from service.labels import parse_given_job
from service.page_tokens import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, PageTokens
from service.patience import answered
from service.preconditions import check_match
from service.records import ListPart
from service.store.configurations import ConfigurationStore, Put
from service.store.port import StaleRowError
from service.store.references import UnknownReferenceError
from workers.errors import FieldProblem, SpecError
from workers.spec import JobSpec
from workers.spec_parts import NAME_PATTERN
from workers.storage_urls import open_storage

_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class ConfigurationPage:
    """One page of a list, shorter than asked for where specs are large; ``next_page_token`` is None on the last."""

    configurations: list[ConfigurationRow]
    next_page_token: str | None


class Configurations:
    """Job specs under a name, which sweeps begin from and may replace."""

    def __init__(self, store: ConfigurationStore, storage: str, tokens: PageTokens) -> None:
        self._store = store
        self._storage = storage
        self._tokens = tokens

    async def page(
        self, search: str | None = None, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> ConfigurationPage:
        """A page of configurations by name. Raises BadRequestError for a bad token."""
        described = f"configurations {search!r}"
        fetch = partial(self._store.page, search)
        return ConfigurationPage(
            *await self._tokens.bounded_page(described, page_size, page_token, fetch, lambda row: row.name)
        )

    async def view(self, name: str, page_size: int = MAX_PAGE_SIZE, page_token: str | None = None) -> ConfigurationView:
        """One configuration with a page of its history. Raises NotFoundError, BadRequestError for a bad token."""
        if not _NAME.fullmatch(name):
            raise _not_found(name)
        row: ConfigurationRow | None = None

        async def fetch(most: int, behind: str | None) -> ListPart[ReplacedVersion]:
            nonlocal row
            found = await self._store.view(name, most, None if behind is None else int(behind))
            if found is None:
                raise _not_found(name)
            row, history = found
            return history

        described = f"history {name}"
        page = await self._tokens.bounded_page(described, page_size, page_token, fetch, lambda each: str(each.version))
        assert row is not None
        return ConfigurationView(row, *page)

    async def find(self, name: str) -> ConfigurationRow | None:
        """One configuration; None where there is none of that name, or none could be."""
        return await self._store.configuration(name) if _NAME.fullmatch(name) else None

    async def put(self, name: str, document: object, *, if_match: str | None = None) -> Put:
        """Make a job spec without name its next version, or its first; the same spec again changes nothing.

        Raises InvalidError, PreconditionError, ConflictError.
        """
        if not _NAME.fullmatch(name):
            told = f"must be a DNS-1123 label: lower-case letters, digits and '-', at most 63 (seen: {name[:80]!r})"
            raise InvalidError("the name is refused", [FieldProblem("/name", told)])
        job = _parsed(name, document)
        for _ in range(MAX_TRIES):
            row = await self._store.configuration(name)
            if row is not None:
                check_match(row.etag, if_match)
            elif if_match is not None:
                raise PreconditionError(f"If-Match {if_match[:80]}: there is no configuration {name!r}; leave it out")
            try:
                return await self._put(name, row, job)
            except StaleRowError:
                continue
            except UnknownReferenceError as error:
                raise InvalidError("the spec is refused", [error.problem]) from None
        raise ConflictError(f"{name} kept changing meanwhile; try again")

    async def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Remove it with its history; sweeps that began from it stay. Raises NotFoundError, PreconditionError."""
        for _ in range(MAX_TRIES):
            row = await self.find(name)
            if row is None:
                raise _not_found(name)
            check_match(row.etag, if_match)
            try:
                deleted = await self._store.delete(row)
            except StaleRowError:
                continue
            await self._clear(deleted.bundle_key)
            return
        raise ConflictError(f"{name} kept changing meanwhile; try again")

    async def _put(self, name: str, row: ConfigurationRow | None, job: JobSpec) -> Put:
        if row is None:
            return Put(await self._store.create(name, job), is_new=True)
        if row.document == nameless(job):
            await self._store.check_references(job)
            return Put(row, is_new=False)
        put = await self._store.replace(row, job)
        await self._clear(put.bundle_key)
        return put

    async def _clear(self, bundle_key: str | None) -> None:
        if bundle_key is not None:
            with contextlib.suppress(OSError):
                await answered(partial(open_storage(self._storage).delete, bundle_key))


def _parsed(name: str, document: object) -> JobSpec:
    if not isinstance(document, Mapping):
        told = f"a configuration is a job spec without name, this is a {type(document).__name__}"
        raise InvalidError("the spec is refused", [FieldProblem("", told)])
    if "name" in document:
        told = f"the address names it {name!r}; leave the job's name out"
        raise InvalidError("the spec is refused", [FieldProblem("/name", told)])
    try:
        return parse_given_job({**document, "name": name})
    except SpecError as error:
        raise InvalidError("the spec is refused", error.problems, code=error.code) from None


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no configuration {name[:80]!r}; GET /api/v1/configurations lists them")

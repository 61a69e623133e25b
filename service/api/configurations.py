"""``/configurations``: list, look, put, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service.api.configuration_shapes import Configuration, ConfigurationList
from service.api.problems import Answer
from service.api.requests import IfMatch, IfNoneMatch, PageSize, PageToken, Use, checked_text, is_unchanged, read_json
from service.api.schema import CONFIGURATION_BODY, failures, success
from service.configuration_documents import configuration_document, head_document
from service.configuration_records import ConfigurationView
from service.page_tokens import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from workers.spec_parts import NAME_PATTERN

router = APIRouter(prefix="/configurations", tags=["configurations"])

# What is no name, the use case refuses in words of its own.
NewName = Annotated[str, Path(json_schema_extra={"pattern": NAME_PATTERN}, examples=["digits"])]


def _answer(view: ConfigurationView, status: int = 200) -> Answer:
    """The configuration with its tag."""
    headers = {"ETag": view.configuration.etag, "Cache-Control": "no-cache"}
    return Answer(configuration_document(view), status_code=status, headers=headers)


@router.get("", operation_id="configurations_list", response_model=ConfigurationList, responses=failures())
async def page(
    use: Use,
    search: Annotated[str | None, Query(max_length=63, description="part of a name")] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: PageToken = None,
) -> Answer:
    """Configurations by name, without their histories.

    A page of large specs ends early, with a ``next_page_token``: the list ends where there is none.
    """
    found = await use.configurations.page(checked_text(search), page_size, page_token)
    documents = [head_document(row) for row in found.configurations]
    return Answer({"configurations": documents, "next_page_token": found.next_page_token})


@router.get(
    "/{name}", operation_id="configurations_get", response_model=Configuration, responses=failures(404) | {304: {}}
)
async def get(
    name: str,
    use: Use,
    page_size: PageSize = MAX_PAGE_SIZE,
    page_token: PageToken = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The configuration with its history, and ``ETag``; ``If-Match`` compares the version in it.

    A history of large specs ends early, with a ``next_page_token``: it ends where there is none.
    """
    view = await use.configurations.view(name, page_size, page_token)
    etag = view.configuration.etag
    if is_unchanged(if_none_match, etag):
        return Response(status_code=304, headers={"ETag": etag, "Cache-Control": "no-cache"})
    return _answer(view)


@router.put(
    "/{name}",
    operation_id="configurations_put",
    response_model=Configuration,
    responses=success(201, Configuration, "the first version of that name") | failures(404, 409, 412, 413),
    openapi_extra=CONFIGURATION_BODY,
)
async def put(name: NewName, request: Request, use: Use, if_match: IfMatch = None) -> Answer:
    """Make a job spec without name the next version, or the first; the spec that it has already changes nothing."""
    done = await use.configurations.put(name, await read_json(request), if_match=if_match)
    return _answer(await use.configurations.view(name), 201 if done.is_new else 200)


@router.delete("/{name}", operation_id="configurations_delete", status_code=204, responses=failures(404, 409, 412))
async def delete(name: str, use: Use, if_match: IfMatch = None) -> Response:
    """Remove a configuration with its history; sweeps that began from it stay."""
    await use.configurations.delete(name, if_match=if_match)
    return Response(status_code=204)

"""Reading requests: JSON bodies, and the services behind a route."""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn

from fastapi import Depends, Header, Request

from service.errors import BadRequestError, InvalidError
from service.services import Services
from workers.errors import FieldProblem

MAX_DEPTH = 64
MAX_INT = 2**53


async def services_of(request: Request) -> Services:
    """The services of this application; async, since a plain function would cost each request a hop to a thread."""
    services: Services = request.app.state.services
    return services


Use = Annotated[Services, Depends(services_of)]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=500)]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", max_length=500)]


async def read_json(request: Request) -> object:
    """The body as JSON.

    Strict: no NaN, no text that no database can hold, no absurd nesting. Raises BadRequestError,
    InvalidError, and TooLargeError while the body streams in.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise BadRequestError(f"Content-Type {kind[:80]!r} is not understood; send application/json")
    body = await request.body()
    try:
        document: object = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {str(error)[:200]}") from None
    _check(document, "", 0)
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check(value: Any, pointer: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadRequestError(f"the body is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        _check_text(value, pointer)
    elif isinstance(value, dict):
        for key, part in value.items():
            _check_text(key, pointer)
            _check(part, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", depth + 1)
    elif isinstance(value, list):
        for n, part in enumerate(value):
            _check(part, f"{pointer}/{n}", depth + 1)


def _check_text(text: str, pointer: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "holds half a surrogate pair, which is no character"
    else:
        if "\0" not in text:
            return
        problem = "holds a zero character, which cannot be stored"
    raise InvalidError("the body is refused", [FieldProblem(pointer.encode(errors="replace").decode(), problem)])


def is_unchanged(if_none_match: str | None, etag: str) -> bool:
    """Whether the caller has this very representation already."""
    if if_none_match is None:
        return False
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in known or "*" in known


def checked_text(value: str | None) -> str | None:
    """A text from the address that a database can be asked for. Raises BadRequestError."""
    if value is not None and "\0" in value:
        raise BadRequestError("a parameter holds a zero character, which nothing stored can have")
    return value

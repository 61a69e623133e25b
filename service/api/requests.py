"""Reading requests: JSON bodies, and the services behind a route."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin

from fastapi import Depends, Header, Query, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import Field

from service.errors import BadRequestError, InvalidError
from service.idempotency import MAX_KEY_CHARS
from service.services import Services
from service.strict_json import parse_json
from workers.errors import FieldProblem

MAX_DEPTH = 64
MAX_INT = 2**53
_TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH} levels"


async def services_of(request: Request) -> Services:
    """The services of this application; async, since a plain function would cost each request a hop to a thread."""
    services: Services = request.app.state.services
    return services


Use = Annotated[Services, Depends(services_of)]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=500)]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", max_length=500)]

# What is no key, or no state, the use cases refuse, in words of their own: here it is only told.
_KEY = {"minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~][ -~]*$"}
Key = Annotated[Annotated[str, Field(json_schema_extra=_KEY)] | None, Header(alias="Idempotency-Key")]

PageSize = Annotated[int, Query(ge=1, le=MAX_INT, description="more than 500 counts as 500")]
PageToken = Annotated[str | None, Query(max_length=500)]


def state_among(known: type[StrEnum]) -> Any:
    """The parameter of a list that holds one of these states."""
    return Query(max_length=20, json_schema_extra={"enum": [str(state) for state in known]})


async def known_parameters_only(request: Request) -> None:
    """Refuse what the call would ignore: a misspelt filter must not answer with everything. Raises InvalidError."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    if not given:
        return
    known = _query_parameters(request.scope["route"])
    found = {name: _problem(name, times, known) for name, times in given.items()}
    problems = [FieldProblem(f"/query/{name[:80]}", words) for name, words in found.items() if words is not None]
    if problems:
        raise InvalidError("a parameter is refused", problems)


def _query_parameters(route: APIRoute) -> Mapping[str, bool]:
    """The names that a call takes, and whether it takes them more than once."""
    # Those of a model, as a list of jobs has it, are told without their kind.
    others = (params.Path, params.Header, params.Cookie)
    known = [field for field in get_flat_params(route.dependant) if not isinstance(field.field_info, others)]
    return {field.alias: _is_list(field.field_info.annotation) for field in known}


def _is_list(annotation: Any) -> bool:
    return any(get_origin(kind) is list for kind in (annotation, *get_args(annotation)))


def _problem(name: str, times: int, known: Mapping[str, bool]) -> str | None:
    if name not in known:
        return _unknown(name, tuple(known))
    return None if times == 1 or known[name] else f"{name!r} is given {times} times and takes one value; leave one"


def _unknown(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known) or 'none'}"
    return f"unknown parameter {name!r:.80}; {hint}"


async def read_json(request: Request) -> object:
    """The body as JSON.

    Strict: no key twice, no NaN, no text that no database can hold, no absurd nesting. Raises BadRequestError,
    InvalidError, and TooLargeError while the body streams in.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise BadRequestError(f"Content-Type {kind[:80]!r} is not understood; send application/json")
    body = await request.body()
    try:
        document: object = parse_json(body)
    except RecursionError:
        raise BadRequestError(_TOO_DEEP) from None
    except ValueError as error:
        raise BadRequestError(f"the body cannot be read as JSON: {str(error)[:200]}") from None
    _check(document, "", 0)
    return document


async def no_body(request: Request) -> None:
    """Refuse what the call would ignore: any body but an empty one or ``{}``. Raises what ``read_json`` does."""
    if await request.body() and await read_json(request) != {}:
        raise InvalidError("the body is refused", [FieldProblem("", "this call takes none; send no body, or {}")])


def _check(value: Any, pointer: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadRequestError(_TOO_DEEP)
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

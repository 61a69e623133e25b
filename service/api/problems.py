"""Errors as ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from service import errors
from service.errors import ServiceError
from service.pages.render import problem_page
from service.store.port import DatabaseAwayError
from workers.errors import FieldProblem

log = structlog.get_logger("concertina.api")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

STATUS: Mapping[type[ServiceError], int] = {
    errors.BadRequestError: 400,
    errors.NotAuthorisedError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.PreconditionError: 412,
    errors.TooLargeError: 413,
    errors.InvalidError: 422,
    errors.TooManyError: 429,
    errors.UnavailableError: 503,
}
CODE_OF_STATUS = {status: kind.code for kind, status in STATUS.items()} | {405: "METHOD_NOT_ALLOWED"}


class Answer(Response):
    """A JSON document in ASCII, so that nothing that a job once told can fail to be encoded."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact JSON; NaN is a fault of ours."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


class ProblemAnswer(Answer):
    """An error's document."""

    media_type = MEDIA_TYPE


def problem(
    status: int, detail: str, code: str, request_id: str, problems: Sequence[FieldProblem] = ()
) -> ProblemAnswer:
    """The answer for one error."""
    document = {
        "type": f"urn:concertina:problem:{code.lower().replace('_', '-')}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "errors": [{"pointer": p.pointer, "detail": p.detail} for p in problems],
        "request_id": request_id,
    }
    headers = {"Cache-Control": "no-store"}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="concertina"'
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return ProblemAnswer(document, status_code=status, headers=headers)


def problem_of(error: ServiceError, request_id: str) -> ProblemAnswer:
    """The answer for a use case's refusal."""
    return problem(STATUS[type(error)], error.detail, error.code_seen, request_id, error.problems)


def install_handlers(app: FastAPI) -> None:
    """Make refusals problems; the gate does so with what nobody expected (``unexpected``)."""
    app.add_exception_handler(ServiceError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(DatabaseAwayError, _away)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return problem_of(error, request_id_of(request))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [
        FieldProblem("".join(f"/{part}" for part in e["loc"]), f"{e['msg']} (seen: {str(e.get('input'))[:80]})")
        for e in error.errors()
    ]
    return problem(422, "a parameter is refused", "INVALID", request_id_of(request), problems)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    detail = {
        404: f"there is nothing at {request.url.path[:200]}; see /openapi.json",
        405: f"{request.method} is not answered at {request.url.path[:200]}; see /openapi.json",
    }.get(status, str(error.detail))
    request_id = request_id_of(request)
    if status in (404, 405) and wants_page(request):
        return problem_page("Not found", "There is no such page.", status, request_id)
    answer = problem(status, detail, CODE_OF_STATUS.get(status, "HTTP_ERROR"), request_id)
    answer.headers.update(error.headers or {})
    if status == 405:
        answer.headers["Allow"] = ", ".join(_allowed(request))
    return answer


def _allowed(request: Request) -> list[str]:
    """All methods of the path; the framework tells only those of the first route that has it."""
    return sorted(
        {
            method
            for route in iter_route_contexts(request.app.routes)
            if route.path is not None and compile_path(route.path)[0].match(request.url.path)
            for method in route.methods or ()
        }
    )


async def _gone(request: Request, error: Exception) -> Response:
    return problem(400, "the request's body broke off", "BAD_REQUEST", request_id_of(request))


async def _away(request: Request, error: Exception) -> Response:
    request_id = request_id_of(request)
    log.error("the database is away", request_id=request_id, error=str(error))
    detail = "the database does not answer now; jobs that run go on meanwhile, try again"
    if wants_page(request):
        return problem_page("The database is away", detail, 503, request_id)
    return problem(503, detail, errors.UnavailableError.code, request_id)


def unexpected(request: Request, error: Exception) -> Response:
    """The answer for a fault of ours; the log tells more."""
    request_id = request_id_of(request)
    log.error("unexpected error", request_id=request_id, path=request.url.path, exc_info=error)
    detail = f"something went wrong in the service; its log tells more under request {request_id}"
    if wants_page(request):
        return problem_page("Something went wrong", detail, 500, request_id)
    return problem(500, detail, "INTERNAL", request_id)


def request_id_of(request: Request) -> str:
    """The id that the gate gave the request."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def wants_page(request: Request) -> bool:
    """Whether a person's browser asks for a page, rather than a program for a document."""
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")

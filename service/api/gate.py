"""The one door: every request passes here before any route sees it.

Names under which the service may be called, where unsafe requests may come from, who may come in,
how large a body may be, and what every answer carries.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import problem_of, unexpected
from service.errors import (
    BadRequestError,
    ForbiddenError,
    NotAuthorisedError,
    ServiceError,
    TooLargeError,
    UnavailableError,
)
from service.services import Services
from service.settings import is_loopback
from service.store.port import DatabaseAwayError

COOKIE = "concertina_session"
API_PREFIX = "/api/v1"
UPLOAD_PATH = f"{API_PREFIX}/bundles"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEALTH_PATHS = frozenset({"/livez", "/readyz"})
PUBLIC_PATHS = HEALTH_PATHS | {"/login"}
STATIC_PREFIX = "/static/"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """ASGI middleware around everything; what it refuses never reaches a route."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._hosts = {host.lower() for host in (services.settings.host, *services.settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the module's text."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(headers)
        begin_s = time.perf_counter()
        has_begun = False

        async def answer(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                _add_headers(message, request_id)
                passed_s = time.perf_counter() - begin_s
                self._services.instruments.request(_method(scope), _route(scope), message["status"], passed_s)
            await send(message)

        try:
            self._check_host(scope, headers)
            self._check_origin(scope, headers)
            await self._check_token(scope, headers)
            bounded = self._bounded(scope, headers, receive)
        except ServiceError as error:
            await self._refusal(scope, headers, error)(scope, receive, answer)
            return
        try:
            await self._app(scope, bounded, answer)
        except Exception as error:
            # The one place of this process that catches broadly; outside of it answers would lack their headers.
            if has_begun:
                raise
            await unexpected(Request(scope), error)(scope, receive, answer)

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """Another site's name for this address is DNS rebinding. Health checks call by address, and tell nothing."""
        if scope["path"] in HEALTH_PATHS:
            return
        given = headers.getlist("host")
        name = _host_name(given[0]) if len(given) == 1 else None
        if name is None or not (is_loopback(name) or name in self._hosts):
            seen = given[0][:100] if given else "none"
            raise BadRequestError(
                f"this service does not answer to the name {seen!r}; add it with --allowed-host",
                code="HOST_NOT_ALLOWED",
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """A page of another site must not make a browser act here."""
        if scope["method"] in SAFE_METHODS:
            return
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site not in ("same-origin", "none"):
            raise ForbiddenError(f"the request comes from another site ({site})", code="CROSS_SITE")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            raise ForbiddenError(f"the request comes from {origin[:100]!r}, another origin", code="CROSS_SITE")
        if site is None and origin is None and _bearer(headers) is None and _cookie(headers) is not None:
            raise ForbiddenError(
                "a browser's session needs an Origin header with an unsafe request; programs send a token instead",
                code="CROSS_SITE",
            )

    async def _check_token(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        if path in PUBLIC_PATHS or path.startswith(STATIC_PREFIX):
            return
        bearer = _bearer(headers)
        secret = bearer if bearer is not None else _cookie(headers)
        try:
            is_valid = secret is not None and await self._services.access.is_valid(secret)
        except DatabaseAwayError:
            raise UnavailableError("the database does not answer now; try again") from None
        if not is_valid:
            seen = "no token came with the request" if secret is None else "the token is not valid"
            raise NotAuthorisedError(
                f"{seen}; send `Authorization: Bearer TOKEN`, with the token from the file `token` in the service's "
                "home directory, or log in at /login"
            )

    def _bounded(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """Count the body while it streams in; bundles have a limit of their own, and are told it as early."""
        settings = self._services.settings
        limit = settings.max_bundle_bytes if scope["path"] == UPLOAD_PATH else settings.max_body_bytes
        error = TooLargeError(f"the body is larger than {limit} bytes; send less")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise BadRequestError("Content-Length is not a number")
        if int(length[:20]) > limit:
            raise error
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise error
            return message

        return counted

    def _refusal(self, scope: Scope, headers: Headers, error: ServiceError) -> Response:
        path = scope["path"]
        is_browser = "text/html" in headers.get("accept", "") and not path.startswith("/api/")
        if isinstance(error, NotAuthorisedError) and is_browser:
            if scope["method"] != "GET":
                return RedirectResponse("/login", status_code=303)
            query = scope["query_string"].decode("latin-1")
            return RedirectResponse(f"/login?next={quote(f'{path}?{query}' if query else path)}", status_code=303)
        return problem_of(error, scope["state"]["request_id"])


def session_of(headers: Headers) -> str | None:
    """The browser session's secret that came with a request."""
    return _cookie(headers)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"


def _method(scope: Scope) -> str:
    known = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
    return scope["method"] if scope["method"] in known else "other"


def _route(scope: Scope) -> str:
    """The path's template; the framework keeps it without the prefix under which its router was included."""
    path = getattr(scope.get("route"), "path", None)
    if not isinstance(path, str):
        return "other"
    return API_PREFIX + path if scope["path"].startswith(f"{API_PREFIX}/") else path


def _host_name(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    is_plain = parts.netloc == host and parts.username is None and not parts.path
    return parts.hostname if is_plain else None


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _cookie(headers: Headers) -> str | None:
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return None
    return cookies[COOKIE].value if COOKIE in cookies else None


def _add_headers(message: Message, request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers["X-Request-Id"] = request_id

"""Logging a browser in and out."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from service.api.gate import COOKIE, session_of
from service.api.requests import Use
from service.auth import SESSION_LIFETIME_S
from service.pages.render import login_page

router = APIRouter(include_in_schema=False)

HOME_PAGE = "/jobs"
MAX_FIELDS = 10


@router.get("/login")
async def form(
    request: Request,
    use: Use,
    code: Annotated[str | None, Query(max_length=200)] = None,
    next_page: Annotated[str, Query(alias="next", max_length=2000)] = HOME_PAGE,
) -> Response:
    """The login form; with a link's ``code`` the browser is logged in at once."""
    target = _own_page(next_page)
    if code is None:
        return login_page(target)
    secret = await use.access.log_in_by_link(code)
    if secret is None:
        return login_page(target, "This link was used already, or is older than ten minutes.", 401)
    return _logged_in(request, use.settings.behind_proxy, secret, target)


@router.post("/login")
async def log_in(request: Request, use: Use) -> Response:
    """What the form sends: ``token`` and ``next``."""
    try:
        fields = await request.form(max_files=0, max_fields=MAX_FIELDS)
    except HTTPException:
        return login_page(HOME_PAGE, "The form could not be read.", 400)
    token, target = str(fields.get("token", "")).strip(), _own_page(str(fields.get("next", HOME_PAGE)))
    secret = await use.access.log_in(token)
    if secret is None:
        return login_page(target, "This is not the token.", 401)
    return _logged_in(request, use.settings.behind_proxy, secret, target)


@router.post("/logout")
async def log_out(request: Request, use: Use) -> Response:
    """End this browser's session."""
    if (secret := session_of(request.headers)) is not None:
        await use.access.log_out(secret)
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


def _logged_in(request: Request, behind_proxy: bool, secret: str, target: str) -> Response:
    answer = RedirectResponse(target, status_code=303)
    is_secure = request.url.scheme == "https" or (
        behind_proxy and request.headers.get("x-forwarded-proto", "").lower() == "https"
    )
    answer.set_cookie(
        COOKIE, secret, max_age=int(SESSION_LIFETIME_S), path="/", secure=is_secure, httponly=True, samesite="strict"
    )
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _own_page(text: str) -> str:
    """A path of this service, never another site: browsers read ``//x`` and ``/\\x`` as hosts."""
    parts = urlsplit(text)
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.netloc and text.isprintable()
    return text if is_own and "\\" not in text else HOME_PAGE

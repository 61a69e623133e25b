"""The door: tokens, sessions, names, origins, sizes, and what every answer carries."""

from __future__ import annotations

import itertools
import stat
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from service.api.gate import COOKIE, SECURITY_HEADERS
from service.auth import LINK_LIFETIME_S, SESSION_LIFETIME_S, ensure_admin_token, make_login_link
from service.folders import token_file
from service.services import Services
from service.settings import Settings
from service.store.opening import Store
from tests.service.conftest import BASE_URL
from tests.service.given import Clock, spec_document
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
WITHOUT_TOKEN = {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/login"), ("POST", "/login")}
BROWSER = {"Origin": BASE_URL, "Sec-Fetch-Site": "same-origin"}


def all_paths(app: FastAPI) -> list[str]:
    paths = {route.path for route in iter_route_contexts(app.routes) if route.path is not None}
    filled = {path.replace("{path:file_path}", "a").replace("{step}", "1") for path in paths}
    for name in ("job_id", "sweep_id", "schedule_id", "node", "verb", "name"):
        filled = {path.replace(f"{{{name}}}", "x") for path in filled}
    assert not any("{" in path for path in filled), filled
    return sorted(filled)


async def test_without_a_token_nothing_answers_but_what_the_contract_names(
    app: FastAPI, anonymous: httpx2.AsyncClient
) -> None:
    paths = [*all_paths(app), "/api/v1/nothing", "/docs", "/redoc", "/", "//api/v1/jobs", "/livez/", "/login/x"]
    assert len(paths) > 35
    open_calls = set()
    for path in paths:
        for method in METHODS:
            answer = await anonymous.request(method, path)
            if answer.status_code != 401:
                open_calls.add((method, path, answer.status_code))
    for method, path, status in open_calls:
        is_named = (method, path) in WITHOUT_TOKEN or path == "/static"
        assert is_named or status == 405 or (path == "/login" and status == 403), (method, path, status)
    # The form answers a wrong token with 401 too.
    assert {(method, path) for method, path, _ in open_calls} >= WITHOUT_TOKEN - {("POST", "/login")}


async def test_a_refusal_tells_how_to_come_in_and_nothing_else(anonymous: httpx2.AsyncClient) -> None:
    answer = await anonymous.get("/api/v1/jobs/job_00000000000000000000000000")
    assert_problem(answer, 401, "NOT_AUTHORISED")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    for value in ("Bearer", "Bearer x", "Basic YTpi", "bearer " + "x" * 3000, "Bearer \u00e9".encode()):
        refused = await anonymous.get("/api/v1/jobs", headers={"Authorization": value})
        assert_problem(refused, 401, "NOT_AUTHORISED")


async def test_a_browser_is_sent_to_the_login_page_and_back(anonymous: httpx2.AsyncClient) -> None:
    answer = await anonymous.get("/jobs/x?tab=logs", headers={"Accept": "text/html"})
    assert answer.status_code == 303
    place = urlsplit(answer.headers["location"])
    assert (place.path, parse_qs(place.query)) == ("/login", {"next": ["/jobs/x?tab=logs"]})


async def test_the_token_is_made_once_and_only_its_owner_can_read_it(
    store: Store, settings: Settings, clock: Clock
) -> None:
    await ensure_admin_token(store.access, settings.home)
    file = token_file(settings.home)
    token = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token.startswith("ctn_")
    await ensure_admin_token(store.access, settings.home)
    assert file.read_text() == token


async def test_a_token_file_that_is_there_is_taken_for_a_new_database(store: Store, settings: Settings) -> None:
    token_file(settings.home).write_text("ctn_" + "a" * 40 + "\n")
    await ensure_admin_token(store.access, settings.home)
    assert token_file(settings.home).read_text() == "ctn_" + "a" * 40 + "\n"


@pytest.fixture
async def browser(anonymous: httpx2.AsyncClient, settings: Settings) -> httpx2.AsyncClient:
    """A browser that has logged in by the form."""
    token = token_file(settings.home).read_text().strip()
    answer = await anonymous.post("/login", data={"token": token, "next": "/cluster"}, headers=BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (303, "/cluster")
    cookie = answer.headers["set-cookie"]
    assert COOKIE in cookie
    for part in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert part in cookie
    assert token not in cookie
    return anonymous


async def test_a_session_lasts_until_it_is_ended(browser: httpx2.AsyncClient) -> None:
    assert (await browser.get("/api/v1/jobs")).status_code == 200
    for _ in range(2):
        answer = await browser.post("/logout", headers={**BROWSER, "Accept": "text/html"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert (await browser.get("/api/v1/jobs")).status_code == 401


async def test_an_ended_session_cannot_be_used_again(browser: httpx2.AsyncClient) -> None:
    secret = browser.cookies[COOKIE]
    await browser.post("/logout", headers=BROWSER)
    answer = await browser.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}={secret}"})
    assert answer.status_code == 401


async def test_a_session_runs_out(browser: httpx2.AsyncClient, clock: Clock) -> None:
    clock.advance(SESSION_LIFETIME_S + 1)
    assert (await browser.get("/api/v1/jobs")).status_code == 401


async def test_a_wrong_token_does_not_log_in(anonymous: httpx2.AsyncClient) -> None:
    for data in ({"token": "x"}, {"token": ""}, {}, {"token": "\u00e9" * 50}):
        answer = await anonymous.post("/login", data=data)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    assert (await anonymous.post("/login", files={"token": b"x"})).status_code == 400


ELSEWHERE = ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "", "/a\\b", "/\x00", "/\r\nX: y"]


async def test_the_login_leads_nowhere_else(
    subtests: pytest.Subtests, anonymous: httpx2.AsyncClient, settings: Settings
) -> None:
    for target in ELSEWHERE:
        with subtests.test(target=repr(target)[:80]):
            anonymous.cookies.clear()
            token = token_file(settings.home).read_text().strip()
            answer = await anonymous.post("/login", data={"token": token, "next": target})
            assert answer.headers["location"] == "/jobs"


async def test_a_link_logs_a_browser_in_once(anonymous: httpx2.AsyncClient, services: Services) -> None:
    link = await make_login_link(services.store.access, BASE_URL)
    first = await anonymous.get(link)
    assert first.status_code == 303
    assert COOKIE in first.headers["set-cookie"]
    anonymous.cookies.clear()
    second = await anonymous.get(link)
    assert second.status_code == 401
    assert "set-cookie" not in second.headers


async def test_a_link_is_good_for_ten_minutes(anonymous: httpx2.AsyncClient, services: Services, clock: Clock) -> None:
    link = await make_login_link(services.store.access, BASE_URL)
    clock.advance(LINK_LIFETIME_S + 1)
    assert (await anonymous.get(link)).status_code == 401


FROM_ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": BASE_URL, "Sec-Fetch-Site": "cross-site"},
    {},
]


async def test_another_site_cannot_act_with_a_browsers_session(
    subtests: pytest.Subtests, browser: httpx2.AsyncClient
) -> None:
    for headers, method in itertools.product(FROM_ELSEWHERE, ("POST", "PUT", "DELETE", "PATCH", "BREW")):
        with subtests.test(headers=headers, method=method):
            assert_problem(await browser.request(method, "/api/v1/jobs", headers=headers), 403, "CROSS_SITE")


async def test_the_own_pages_and_programs_can(browser: httpx2.AsyncClient, settings: Settings) -> None:
    assert (await browser.post("/api/v1/jobs", json=spec_document(), headers=BROWSER)).status_code == 201
    token = {"Authorization": f"Bearer {token_file(settings.home).read_text().strip()}"}
    assert (await browser.post("/api/v1/jobs", json=spec_document(), headers=token)).status_code == 201
    evil = await browser.post("/api/v1/jobs", json=spec_document(), headers={**token, "Origin": "http://evil.example"})
    assert_problem(evil, 403, "CROSS_SITE")


OTHER_NAMES = ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "x@127.0.0.1", "", "127.0.0.1:x", "a/b"]


async def test_another_name_for_this_address_is_refused(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for host in OTHER_NAMES:
        with subtests.test(host=repr(host)[:80]):
            answer = await client.get("/api/v1/jobs", headers={"Host": host})
            assert_problem(answer, 400, "HOST_NOT_ALLOWED")
            assert (await client.get("/livez", headers={"Host": host})).status_code == 200


async def test_names_of_this_machine_and_allowed_ones_are_answered(settings: Settings, running_app: Any) -> None:
    allowed = settings.model_copy(update={"allowed_hosts": ("train.example",)})
    async with running_app(allowed) as caller:
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8420", "train.example", "TRAIN.example:443"):
            assert (await caller.get("/api/v1/version", headers={"Host": host})).status_code == 200, host


async def test_behind_a_proxy_with_tls_the_cookie_is_secure(settings: Settings, running_app: Any) -> None:
    token = {"token": token_file(settings.home).read_text().strip()} if token_file(settings.home).exists() else {}
    async with running_app(settings.model_copy(update={"behind_proxy": True})) as caller:
        token = {"token": token_file(settings.home).read_text().strip()}
        answer = await caller.post("/login", data=token, headers={"X-Forwarded-Proto": "https"})
        assert "; Secure" in answer.headers["set-cookie"]
        answer = await caller.post("/login", data=token)
        assert "Secure" not in answer.headers["set-cookie"]


SOME_PATHS = ["/livez", "/login", "/static/page.css", "/api/v1/jobs", "/jobs", "/nothing"]


async def test_every_answer_carries_the_security_headers(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for path in SOME_PATHS:
        with subtests.test(path=repr(path)[:80]):
            answer = await client.get(path)
            for name, value in SECURITY_HEADERS.items():
                assert answer.headers[name] == value
            policy = answer.headers["content-security-policy"]
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-request-id"]


async def test_a_given_request_id_is_kept_if_it_is_plain(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/livez", headers={"X-Request-Id": "abc-12345"})).headers["x-request-id"] == "abc-12345"
    answer = await client.get("/livez", headers={"X-Request-Id": "<script>alert(1)"})
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_body_over_the_limit_is_refused_before_it_is_read(settings: Settings, running_app: Any) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1000
            yield b" " * 1000

    async with running_app(settings.model_copy(update={"max_body_bytes": 20_000})) as caller:
        for path in ("/api/v1/jobs", "/api/v1/jobs/validate"):
            told = await caller.post(path, content=b" " * 20_001)
            assert_problem(told, 413, "TOO_LARGE")
            read = 0
            streamed = await caller.post(path, content=endless())
            assert_problem(streamed, 413, "TOO_LARGE")
            assert read <= 25_000
        assert (await caller.get("/api/v1/jobs")).json()["jobs"] == []


async def test_an_unexpected_error_shows_no_traceback(app: FastAPI, client: httpx2.AsyncClient) -> None:
    async def broken() -> None:
        raise RuntimeError("the inner secret")

    app.add_api_route("/api/v1/broken", broken)
    answer = await client.get("/api/v1/broken")
    problem = assert_problem(answer, 500, "INTERNAL")
    assert "inner secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert problem["request_id"] in problem["detail"]

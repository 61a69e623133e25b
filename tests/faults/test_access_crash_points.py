"""The API dies before and after every write about who may come in; who comes again gets in, or stays out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace

import httpx2
import pytest

from service.auth import make_login_link
from service.folders import token_file
from service.settings import Settings
from service.store.access import AccessStore
from service.store.opening import open_store
from tests.faults.caller import Caller, caller, calling
from tests.faults.crash_points import CrashPoint, When, methods_of

__all__ = ["caller"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {"has_admin", "kind_of"}
COMMAND_LINE = {"add_link"}  # which writes it itself


@pytest.fixture
async def browser(caller: Caller) -> AsyncIterator[Caller]:
    """It has no token."""
    url = caller.installation.url
    headers = {"Origin": url, "Accept": "text/html"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
        yield replace(caller, client=client)


async def is_in(browser: Caller) -> bool:
    status = (await browser.say("GET", "/jobs")).status_code
    assert status in (200, 401)
    return status == 200


async def log_in(browser: Caller) -> None:
    token = token_file(browser.installation.settings.home).read_text().strip()
    assert (await browser.visit("POST", "/login", data={"token": token})).status_code == 303
    assert await is_in(browser)


async def log_out(browser: Caller) -> None:
    await log_in(browser)
    session = dict(browser.client.cookies)
    answer = await browser.visit("POST", "/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    browser.client.cookies.update(session)
    assert not await is_in(browser)


async def follow_a_link(browser: Caller) -> None:
    """One that was spent before the browser heard of it is replaced by another, as by hand."""
    store = open_store(browser.installation.settings.database_url)
    links = [await make_login_link(store.access, "") for _ in range(2)]
    await store.close()
    statuses = [(await browser.visit("GET", link)).status_code for link in links]
    assert statuses in ([303, 303], [401, 303])
    assert (await browser.visit("GET", links[1])).status_code == 401
    assert await is_in(browser)


ACTS: Mapping[str, Callable[[Caller], Awaitable[None]]] = {
    "add_session": log_in,
    "end_session": log_out,
    "use_link": follow_a_link,
}


def test_every_write_about_access_is_a_crash_point() -> None:
    assert set(methods_of(AccessStore)) - READS - COMMAND_LINE == {*ACTS, "add_first_admin"}


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", ACTS)
async def test_an_api_that_dies_while_a_browser_comes_or_goes_is_asked_again(
    browser: Caller, method: str, when: When
) -> None:
    browser.arm("access", method, when)
    await ACTS[method](browser)
    await browser.judged()


@pytest.mark.parametrize("when", When)
async def test_an_api_that_dies_at_the_first_token_lets_it_in_when_it_comes_again(
    settings: Settings, when: When
) -> None:
    async with calling(settings, CrashPoint(part="access", method="add_first_admin", when=when)) as caller:
        await caller.see("/jobs")
        assert caller.client.headers["Authorization"].endswith(token_file(settings.home).read_text().strip())
        await caller.judged()

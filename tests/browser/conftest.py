"""Chromium, a filled installation, and pages that fail the test when the browser complains."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from service.records import JobRow
from service.schedule_records import ScheduleRow
from service.sweep_records import SweepRow
from tests import addresses
from tests.browser.scheduled import SCHEDULED_S, fill_schedule
from tests.browser.site import Site
from tests.browser.stock import fill
from tests.browser.swept import SWEPT_S, fill_sweep
from tests.conftest import CHROMIUM_NAMES

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 30_000
HISTORY_S = 300.0
COOKIE = "concertina_session"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ends with each file's tests: nobody changes addresses meanwhile, or could run an event loop in this process."""
    expect.set_options(timeout=TIMEOUT_MS)
    path = next(found for name in CHROMIUM_NAMES if (found := shutil.which(name)))
    with addresses.kept(), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Filled:
    """A site with the sample's jobs, by name, its schedule and its sweep."""

    site: Site
    jobs: dict[str, JobRow]
    schedule: ScheduleRow
    sweep: SweepRow

    def page(self, name: str, query: str = "") -> str:
        """The address of a job's page."""
        return f"/jobs/{self.jobs[name].id}{query}"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A filled home folder, to be copied."""
    site = Site(tmp_path_factory.mktemp("prepared"))
    jobs = site.write(fill, time.time() - HISTORY_S)
    schedule = site.write(fill_schedule, time.time() - SCHEDULED_S)
    return Filled(site, jobs, schedule, site.write(fill_sweep, time.time() - SWEPT_S))


@pytest.fixture(scope="session")
def shared(prepared: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """Jobs in all states; for tests that only look."""
    yield from _served(prepared, tmp_path_factory.mktemp("shared"))


@pytest.fixture
def own(prepared: Filled, tmp_path: Path) -> Iterator[Filled]:
    """The same for a test that changes something."""
    yield from _served(prepared, tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Site]:
    """An installation without any job."""
    site = Site(tmp_path)
    site.start()
    yield site
    site.stop()


def _served(prepared: Filled, home: Path) -> Iterator[Filled]:
    shutil.copytree(prepared.site.home, home, dirs_exist_ok=True)
    site = Site(home, prepared.site.fence)
    site.start()
    yield Filled(site, prepared.jobs, prepared.schedule, prepared.sweep)
    site.stop()


@dataclass
class Viewer:
    """A logged-in browser window; ``faults`` are the browser's complaints.

    Other tests make networks on the machine meanwhile, which Chromium takes for a change of its own: then it gives up
    what it was fetching, and so often it has done so.
    """

    page: Page
    site: Site
    faults: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    num_given_up: int = 0

    def go(self, path: str) -> Page:
        """Open a page of the site and wait for its scripts."""
        self.page.goto(self.site.url + path)
        return self.page

    def allow(self, text: str) -> None:
        """Expect complaints with this text, before and after."""
        self.allowed.append(text)

    def unexpected(self) -> list[str]:
        """Complaints that nobody expected."""
        return [fault for fault in self.faults if not any(text in fault for text in self.allowed)]


Open = Callable[..., Viewer]


@pytest.fixture
def view(browser: Browser) -> Iterator[Open]:
    """Opens windows: ``view(site, width=390, color_scheme="dark", ...)``."""
    viewers: list[Viewer] = []

    def open_window(site: Site, width: int = 1280, *, is_logged_in: bool = True, **options: Any) -> Viewer:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        context.set_default_timeout(TIMEOUT_MS)
        if is_logged_in:
            _log_in(context, site)
        viewer = Viewer(context.new_page(), site)
        viewer.page.on("console", lambda message: _note(viewer, message))
        viewer.page.on("pageerror", lambda error: viewer.faults.append(f"error: {error}"))
        viewers.append(viewer)
        site.write(lambda sample: sample.cluster())  # a look at the cluster that is older than 30 s counts as none
        return viewer

    yield open_window
    for viewer in viewers:
        viewer.page.context.close()
        assert viewer.unexpected() == []


def _note(viewer: Viewer, message: ConsoleMessage) -> None:
    if "net::ERR_NETWORK_CHANGED" in message.text:
        viewer.num_given_up += 1
    elif message.type in ("error", "warning"):
        viewer.faults.append(f"{message.type}: {message.text}")


def _log_in(context: BrowserContext, site: Site) -> None:
    answer = context.request.post(
        f"{site.url}/login", form={"token": site.token, "next": "/jobs"}, headers={"Origin": site.url}
    )
    assert answer.ok, answer.text()

"""The list of schedules and the page of one, as a person uses them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Filled, Open
from tests.browser.sample import Sample
from tests.browser.scheduled import BEFORE_CHANGE_S, CHANGE, SCHEDULED_S, fill_before_change, fire
from tests.browser.site import Site

pytestmark = pytest.mark.browser


def test_a_schedule_tells_its_next_times_in_two_zones_and_its_past(shared: Filled, view: Open) -> None:
    page = view(shared.site, timezone_id="Asia/Kathmandu").go("/schedules")
    row = page.locator("tbody tr", has_text="nightly-digits")
    expect(row).to_contain_text("Active")
    # The zones differ by 10 h 45 min or less, and both are told to the minute: 00 and 30 there are 45 and 15 here.
    expect(row.locator("td").nth(1)).to_have_text(re.compile(r"^\w{3} \d+ \w{3} \d\d:[03]0 \+1[01](30)?$"))
    expect(row.locator("time")).to_have_text(re.compile(r":(15|45)$"))
    expect(row).to_contain_text("Skipped")
    row.get_by_role("link", name="nightly-digits", exact=True).click()
    expect(page.locator("h1")).to_have_text("nightly-digits")
    history = page.get_by_role("region", name="History")
    for text in ("Missed", "Started", "Skipped", "late; the window to catch up is 1 h", "the run before has not ended"):
        expect(history).to_contain_text(text)
    expect(page.get_by_role("region", name="Times to come").locator("tbody tr")).to_have_count(10)
    history.get_by_role("link", name="Queued").click()
    expect(page.locator("h1")).to_have_text("nightly-digits")
    expect(page).to_have_url(re.compile(r"/jobs/job_"))


@pytest.fixture
def before_change(tmp_path: Path) -> Iterator[Site]:
    """An installation with the schedule alone, in which it is shortly before the clocks change."""
    site = Site(tmp_path, clock=lambda: BEFORE_CHANGE_S)
    site.write(fill_before_change, BEFORE_CHANGE_S - SCHEDULED_S)
    site.start()
    yield site
    site.stop()


def test_a_coming_change_of_clocks_is_told_with_its_effect_and_so_is_what_was_caught_up(
    before_change: Site, view: Open
) -> None:
    page = view(before_change, width=390, timezone_id="Asia/Kathmandu").go("/schedules")
    page.get_by_role("link", name="nightly-digits", exact=True).click()
    expect(page.get_by_role("region", name="State").locator(".notice")).to_have_text(CHANGE)
    times = page.get_by_role("region", name="Times to come").locator("tbody tr")
    for row, there, here in ((1, "Sun 4 Oct 01:30 +1030", "20:45"), (2, "Sun 4 Oct 02:30 +11", "21:15")):
        expect(times.nth(row).locator("td").first).to_have_text(there)
        expect(times.nth(row).locator("time")).to_contain_text(here)
    history = page.get_by_role("region", name="History")
    caught_up = history.locator("tbody tr", has_text="Sat 3 Oct 22:00 +1030")
    expect(caught_up).to_contain_text("Started")
    expect(caught_up).to_contain_text("caught up 40 min late")


HEADING_AFTER_NEWS = """() => new Promise((done) => {
    document.addEventListener("htmx:responseError", () => fetch("/schedules").then(
        () => done(document.querySelector("h1").textContent)), { once: true });
    document.body.dispatchEvent(new CustomEvent("live:schedule"));
})"""


def test_it_is_paused_resumed_run_now_and_deleted_on_its_page(own: Filled, view: Open) -> None:
    viewer = view(own.site)
    page = viewer.go(f"/schedules/{own.schedule.id}")
    state = page.get_by_label("State", exact=True)
    page.get_by_role("button", name="Pause").click()
    expect(state).to_contain_text("paused by hand")
    expect(page.get_by_role("heading", name="Would run next")).to_be_visible()
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("region", name="History")).to_contain_text("the run before has not ended")
    page.get_by_role("button", name="Resume").click()
    expect(state).to_contain_text("Active")
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("What it started stays")
    found: list[str] = []

    def answer_late(route: Route) -> None:
        answer = route.fetch(max_redirects=0)
        found.append(page.evaluate(HEADING_AFTER_NEWS))
        route.fulfill(response=answer)

    viewer.allow("404")
    page.route("**/actions/delete", answer_late)
    dialog.get_by_role("button", name="Delete it").click()
    expect(page.locator("#schedules")).to_contain_text("No schedule yet")
    assert found == ["nightly-digits"], "the page stays until the action's answer leads away"


def test_what_the_leader_fires_appears_by_itself(own: Filled, view: Open) -> None:
    page = view(own.site).go(f"/schedules/{own.schedule.id}")
    history = page.get_by_role("region", name="History").locator("tbody tr")
    before = history.count()

    async def an_hour_later(sample: Sample) -> None:
        await fire(sample)

    own.site.write(an_hour_later, time.time() + 3600)
    expect(history.nth(before + 1)).to_be_visible()  # and one more where half an hour begins meanwhile


def test_a_dangerous_action_asks_without_javascript_too(own: Filled, view: Open) -> None:
    page = view(own.site, java_script_enabled=False).go(f"/schedules/{own.schedule.id}")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Delete nightly-digits?")
    page.get_by_role("link", name="Go back").click()
    expect(page.locator("h1")).to_have_text("nightly-digits")


def test_an_installation_without_schedules_says_how_to_begin(empty: Site, view: Open) -> None:
    page = view(empty).go("/schedules")
    expect(page.locator("#schedules pre")).to_contain_text("concertina schedule create")

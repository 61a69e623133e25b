"""A job that really trains, on a real Ray: watched on its page, and resized by the page's own control."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cluster.conftest import served
from tests.cluster.serving import Serving

__all__ = ["served"]

pytestmark = [pytest.mark.browser, pytest.mark.cluster, pytest.mark.timeout(300)]

LIMIT_MS = 90_000.0
SPEC = {
    "name": "watched",
    "entrypoint": "workers.recipes.digits:build",
    "steps": 1_000_000,
    "workers": {"min": 1, "max": 2},
    "checkpoint": {"every_steps": 1_000_000},
}


@pytest.fixture
def page(browser: Browser, served: Serving) -> Iterator[Page]:
    """Logged in by the link that `serve` prints; what the browser complains of fails the test."""
    link = re.search(r"http://\S+/login\S*", served.told)
    assert link is not None, served.told
    faults: list[str] = []
    with browser.new_context() as context:
        made = context.new_page()
        made.on("pageerror", lambda error: faults.append(str(error)))
        made.on("console", lambda told: faults.append(told.text) if told.type == "error" else None)
        made.goto(link[0])
        yield made
    assert faults == []


def test_a_training_is_watched_and_resized_on_its_page(served: Serving, page: Page) -> None:
    with served.client() as client:
        job_id = client.submit(SPEC)["id"]
        client.scale(job_id, 1, "the page shall grow it")
        page.goto(f"{served.url}/jobs/{job_id}")
        expect(page.locator("#size-now")).to_contain_text("1 worker trains", timeout=LIMIT_MS)
        loss = page.locator("[data-lane=loss] output")
        expect(loss).to_have_text(re.compile(r"\d"), timeout=LIMIT_MS)
        expect(loss).not_to_have_text(loss.inner_text(), timeout=LIMIT_MS)
        page.get_by_label("Workers", exact=True).first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#workers")).to_have_value("2")
        page.get_by_placeholder("Reason").fill("more eyes")
        page.get_by_role("button", name="Resize").click()
        expect(page.locator("#size-now")).to_contain_text("2 workers train", timeout=LIMIT_MS)
        grown = "Grew from 1 to 2 workers by user: more eyes"
        expect(page.locator("#happened")).to_contain_text(grown, timeout=LIMIT_MS)
        expect(page.locator("[data-lane=workers] output")).to_have_text("2", timeout=LIMIT_MS)
        client.command(job_id, "cancel")
        expect(page.locator("#summary")).to_contain_text("Cancelled", timeout=LIMIT_MS)

"""Every page at two widths in two colour schemes: accessible, inside its width, light, and without complaints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, TimeoutError

from tests.browser.conftest import Filled, Open, Viewer

pytestmark = pytest.mark.browser

AXE = (Path(__file__).parent / "axe.min.js").read_text()
MAX_FIRST_LOAD_BYTES = 150_000
TABS = ("logs", "metrics", "batch", "report", "system", "events", "attempts", "checkpoints", "files", "spec")


def addresses(filled: Filled) -> list[str]:
    """One address of every kind of page, and of the job page in every kind of state."""
    two = f"{filled.jobs['digits'].id},{filled.jobs['mnist-warmup'].id}"
    return [
        "/jobs",
        "/jobs?state=PAUSED&q=nothing-like-this",
        *(
            filled.page(name)
            for name in ("digits", "speech-tiny", "mnist-warmup", "wide-fails", "chargpt-large", "chargpt-small")
        ),
        *(filled.page("digits", f"?tab={tab}") for tab in TABS),
        filled.page("wide-fails", "?tab=logs"),
        filled.page("digits", f"?tab=spec&with={filled.jobs['mnist-warmup'].id}"),
        "/compare",
        f"/compare?jobs={two}",
        "/cluster",
        "/schedules",
        f"/schedules/{filled.schedule.id}",
        "/sweeps",
        f"/sweeps/{filled.sweep.id}",
        f"/sweeps/{filled.sweep.id}?sort=best&brush=3:0.5-1",
        "/jobs/job_00000000000000000000000000",
    ]


def settled(viewer: Viewer, address: str, num_tries: int = 3) -> Page:
    """The page once its charts are drawn, if there are any."""
    num_given_up, page = viewer.num_given_up, viewer.go(address)
    try:
        if page.locator("[data-charts]").count():
            page.wait_for_selector(".lane canvas, [data-note]:not([hidden])")
    except TimeoutError:
        if viewer.num_given_up == num_given_up or num_tries == 1:
            raise
        return settled(viewer, address, num_tries - 1)
    return page


def violations(page: Page, *rules: str) -> list[dict[str, Any]]:
    """What axe finds by these rules, or by all of them, without the parts of its report that nobody reads."""
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(AXE)
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found: dict[str, Any] = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        {"rule": v["id"], "nodes": [n["html"][:160] for n in v["nodes"]], "why": v["nodes"][0]["failureSummary"][:300]}
        for v in found["violations"]
    ]


def test_every_page_is_accessible_and_stays_in_its_width(shared: Filled, view: Open) -> None:
    viewer = view(shared.site)
    wrong: list[object] = []
    for address in addresses(shared):
        page = settled(viewer, address)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            for scheme, rules in (("light", ()), ("dark", ("color-contrast", "link-in-text-block"))):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its literals
                wrong += [(address, width, scheme, found) for found in violations(page, *rules)]
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append((address, width, "scrolls sideways"))
    viewer.allow("404")
    assert wrong == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_login_page_is_accessible(shared: Filled, view: Open, width: int) -> None:
    page = view(shared.site, width, is_logged_in=False).go("/login")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


def test_no_page_takes_more_than_150_kb_to_load(shared: Filled, view: Open) -> None:
    viewer = view(shared.site)
    network = viewer.page.context.new_cdp_session(viewer.page)
    sizes: list[float] = []
    network.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    network.send("Network.enable")
    network.send("Network.setCacheDisabled", {"cacheDisabled": True})
    two = f"{shared.jobs['digits'].id},{shared.jobs['mnist-warmup'].id}"
    queries = ("", "?tab=logs", "?tab=metrics", "?tab=spec")
    lists = ("/jobs", "/cluster", f"/compare?jobs={two}", f"/sweeps/{shared.sweep.id}")
    for address in (*lists, *(shared.page("digits", query) for query in queries)):
        sizes.clear()
        settled(viewer, address)
        assert 10_000 < sum(sizes) <= MAX_FIRST_LOAD_BYTES, address


def test_pages_take_everything_from_this_service(shared: Filled, view: Open) -> None:
    viewer = view(shared.site)
    asked: list[str] = []
    viewer.page.on("request", lambda request: asked.append(request.url))
    settled(viewer, shared.page("digits"))
    assert asked
    assert [url for url in asked if not url.startswith(shared.site.url)] == []


def test_inline_script_is_refused_by_the_browser(shared: Filled, view: Open) -> None:
    viewer = view(shared.site)
    page = viewer.go("/jobs")
    page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s); }"
    )
    assert page.evaluate("window.ran") is None
    viewer.allow("Content Security Policy")


def test_contrast_holds_for_the_words_of_charts_too(shared: Filled, view: Open) -> None:
    for scheme in ("light", "dark"):
        page = view(shared.site, color_scheme=scheme).go("/jobs")
        worst = page.evaluate(CONTRASTS)
        assert min(worst.values()) >= 4.5, (scheme, worst)


CONTRASTS = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (hex) => {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const of = (name) => light(style.getPropertyValue(`--${name}`).trim());
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  return Object.fromEntries(["ink", "soft", "accent", "second", "third", "good", "warn", "bad"]
    .flatMap((name) => [[name, ratio(of(name), of("paper"))], [`${name} on wash`, ratio(of(name), of("wash"))]]));
}"""

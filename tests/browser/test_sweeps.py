"""The list of sweeps and the page of one, as a person uses them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from service.states import JobState
from tests.browser.conftest import Filled, Open
from tests.browser.sample import Sample
from tests.browser.site import Site
from tests.service.swept import Swept

pytestmark = pytest.mark.browser


def test_a_sweep_tells_what_is_best_and_brushing_narrows_its_trials(shared: Filled, view: Open) -> None:
    page = view(shared.site).go("/sweeps")
    row = page.locator("tbody tr", has_text="digits-lr")
    expect(row).to_contain_text("11 of 20 trials, 1 running, 1 failed")
    row.get_by_role("link", name="digits-lr", exact=True).click()
    summary = page.get_by_label("State and progress")
    expect(summary).to_contain_text(re.compile(r"9\d(\.\d)? % best eval.accuracy so far"))
    expect(summary).to_contain_text("luckiest of 10 trials")
    expect(page.get_by_role("img", name="Best eval.accuracy")).to_be_visible()
    expect(page.get_by_role("region", name="Trials at each rung").locator("tbody tr")).to_have_count(3)
    shares = page.get_by_role("region", name="What mattered").locator("progress")
    values = shares.evaluate_all("bars => bars.map((bar) => bar.value)")
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1.0, abs=0.01)
    dots = page.get_by_role("img", name=re.compile(r"trials, learning rate 1.1e-4 to 0.0395 across")).locator("path")
    expect(dots.first).to_be_attached()
    assert "Trial 7: 93.9 % at lr 0.00803, batch 128" in dots.evaluate_all("dots => dots.map((dot) => dot.textContent)")
    rows = page.get_by_role("region", name="All trials").locator("tbody tr")
    expect(rows).to_have_count(13)
    page.wait_for_load_state()  # a link waits for no script
    grip = page.locator("[data-grip='3']")
    middle = float(grip.get_attribute("height") or 0) / 2
    # The upper half of the metric's axis: the better trials.
    grip.drag_to(grip, source_position={"x": 16, "y": 8}, target_position={"x": 16, "y": middle})
    expect(page.locator("[data-brushed]")).to_have_text(re.compile(r"^[1-9] of 12 trials pass\.$"))
    kept = page.locator("polyline:not(.dim)").count()
    expect(rows.locator("visible=true")).to_have_count(kept)
    page.reload()
    expect(page.locator("polyline:not(.dim)")).to_have_count(kept)
    grip.click()
    expect(rows.locator("visible=true")).to_have_count(13)
    page.get_by_text("Narrow by keyboard").click()
    page.get_by_label("batch.global_size from").press("End")
    expect(page.get_by_label("batch.global_size from")).to_have_attribute("aria-valuetext", "128")
    assert page.locator("polyline:not(.dim)").count() < 12
    rows.locator("visible=true").first.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(r"/jobs/job_"))
    page.get_by_label("State and progress").get_by_role("link", name="sweep").click()
    expect(page.locator("h1")).to_have_text("digits-lr")


def test_it_is_paused_extended_and_stopped_on_its_page_while_trials_appear_by_themselves(
    own: Filled, view: Open
) -> None:
    page = view(own.site).go(f"/sweeps/{own.sweep.id}")
    summary = page.get_by_label("State and progress")

    async def complete_one(sample: Sample) -> None:
        await Swept(sample.store, sample.clock, sample.fence, own.sweep.id).complete(12, 0.99)

    page.get_by_text("Narrow by keyboard").click()
    slider = page.get_by_label("batch.global_size from")
    slider.focus()
    own.site.write(complete_one)
    expect(summary).to_contain_text("99 % best eval.accuracy so far")
    expect(slider).to_be_focused()
    page.get_by_role("button", name="Pause").click()
    expect(summary).to_contain_text("paused by hand")
    page.get_by_label("Trials in all").fill("24")
    page.get_by_role("button", name="Extend").click()
    expect(summary).to_contain_text("of 24 trials")
    page.get_by_role("button", name="Resume").click()
    expect(summary).to_contain_text("Running")
    page.get_by_role("button", name="Retry 1 failed").click()
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("What it has found is kept")
    dialog.get_by_role("button", name="Stop it").click()
    expect(summary).to_contain_text("stopped by hand")


def test_a_number_that_is_typed_outlives_news_and_the_answer_to_another_action(own: Filled, view: Open) -> None:
    page = view(own.site).go(f"/sweeps/{own.sweep.id}")
    wanted, pause = page.get_by_label("Trials in all"), page.locator("#do-pause")

    async def fail_one(sample: Sample) -> None:
        await Swept(sample.store, sample.clock, sample.fence, own.sweep.id).end(12, JobState.FAILED)

    def answer_late(route: Route) -> None:
        answer = route.fetch()
        wanted.fill("25")
        route.fulfill(response=answer)

    def answer_after_news(route: Route) -> None:
        wanted.evaluate("(field) => field.dataset.old = 'yes'")
        answer = route.fetch()
        expect(page.locator("input[data-old]")).to_have_count(0)
        route.fulfill(response=answer)

    wanted.fill("24")
    pause.evaluate("(button) => button.dataset.old = 'yes'")
    own.site.write(fail_one)
    expect(page.locator("#do-pause:not([data-old])")).to_be_visible()
    expect(wanted).to_have_value("24")
    page.route("**/actions/pause", answer_late)
    pause.click()
    expect(pause).to_have_count(0)
    expect(wanted).to_have_value("25")
    page.route("**/actions/extend", answer_after_news)
    page.get_by_role("button", name="Extend").click()
    expect(page.get_by_label("State and progress")).to_contain_text("of 25 trials")
    expect(wanted).to_have_value("50")


def test_a_trial_is_ended_on_its_row_and_compared_with_the_best_one(own: Filled, view: Open) -> None:
    page = view(own.site).go(f"/sweeps/{own.sweep.id}")
    page.get_by_role("link", name="Compare trial 12 with the best").click()
    expect(page.get_by_role("heading", name=re.compile("Compare"))).to_be_visible()
    page.go_back(wait_until="load")
    end, dialog = page.get_by_role("button", name="End trial 12"), page.get_by_role("dialog")
    end.click()
    expect(dialog).to_contain_text("counts as failed")
    dialog.get_by_role("button", name="Go back").click()
    end.click()
    with page.expect_response(lambda response: response.request.method == "POST"):  # what follows it loads the page
        dialog.get_by_role("button", name="End it").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.locator("#trial-12").click()
    expect(page.get_by_label("State and progress")).to_contain_text("Cancelling")


def test_an_installation_without_sweeps_says_how_to_begin(empty: Site, view: Open) -> None:
    page = view(empty).go("/sweeps")
    expect(page.locator("#sweeps pre")).to_contain_text("concertina sweep submit")


FETCHED_AGAIN = """() => new Promise((done) => {
    document.addEventListener("htmx:afterRequest", function hear(event) {
        if (!event.detail.target.querySelector("details[open]")) return;
        document.removeEventListener("htmx:afterRequest", hear);
        done();
    });
    document.body.dispatchEvent(new CustomEvent("live:sweep"));
})"""


def test_news_takes_no_focus_from_what_was_chosen_after_a_slider(own: Filled, view: Open) -> None:
    page = view(own.site).go(f"/sweeps/{own.sweep.id}")

    async def complete_one(sample: Sample) -> None:
        await Swept(sample.store, sample.clock, sample.fence, own.sweep.id).complete(12, 0.99)

    page.get_by_text("Narrow by keyboard").click()
    page.get_by_label("batch.global_size from").focus()
    for _ in range(2):  # the second time nothing is new, and nothing is replaced
        page.evaluate(FETCHED_AGAIN)
    chosen = page.get_by_label("Trials in all")
    chosen.focus()
    own.site.write(complete_one)
    expect(page.get_by_label("State and progress")).to_contain_text("99 % best eval.accuracy so far")
    expect(chosen).to_be_focused()

"""One job's page: live, marked, resized, explained."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from service.records import JobRow
from tests.browser.conftest import Filled, Open
from tests.browser.history import Course, History
from tests.browser.sample import WEIGHTS_BYTES, Sample
from workers.plan import TimelineKind
from workers.status import TimelineRow

pytestmark = pytest.mark.browser


async def train_on(sample: Sample, job: JobRow, upto: int, workers: int, *rows: TimelineRow) -> None:
    """What a reconciler stores when the job has gone on to step ``upto``."""
    row = await sample.store.reconciler.job(job.id)
    assert row is not None
    history = History(Course("digits", 5000, 3120, [(0, workers)], seed=1), row, sample.clock.now_s - 60)
    begun = history.snapshot(row.samples // 128)
    more = history.more(begun, upto, workers)
    await sample.store.reconciler.fold(replace(more, timeline=rows), sample.fence)


async def now(sample: Sample) -> float:
    return sample.clock.now_s


def grown(upto: int, workers: int, time_s: float) -> TimelineRow:
    return TimelineRow(
        key=f"plan/1/{upto}",
        kind=TimelineKind.RESIZE,
        time=time_s,
        step=upto,
        actor="user",
        reason="more data",
        before={"workers": workers - 1},
        after={"workers": workers},
        cost_s=0.19,
        steps_lost=0,
    )


def restored(step: int, steps_lost: int, time_s: float) -> TimelineRow:
    return replace(
        grown(step, 3, time_s),
        kind=TimelineKind.RESTORE,
        actor="controller",
        reason=f"training from the checkpoint of step {step}",
        cost_s=2.5,
        steps_lost=steps_lost,
    )


def charts(page: Page) -> Page:
    page.wait_for_selector("[data-lane=workers] canvas")
    return page


def test_progress_charts_and_timeline_follow_the_training(own: Filled, view: Open) -> None:
    page = charts(view(own.site).go(own.page("digits")))
    expect(page.locator("#summary")).to_contain_text("step 3,120 of 5,000")
    before = page.locator("[data-lane=throughput]").screenshot()
    job = own.jobs["digits"]
    own.site.write(
        lambda sample: train_on(
            sample, job, 4000, 4, restored(3083, 37, sample.clock.now_s), grown(3120, 4, sample.clock.now_s)
        )
    )
    expect(page.locator("#summary")).to_contain_text("step 4,000 of 5,000")
    expect(page.locator("#happened li").first).to_contain_text(
        "Grew from 3 to 4 workers by user: more data; took 0.19 s; no step lost"
    )
    expect(page.locator("#happened li").nth(1)).to_contain_text("took 2.5 s; 37 steps lost")
    expect(page.locator("[data-lane=workers] output")).to_have_text("4")
    assert page.locator("[data-lane=throughput]").screenshot() != before


def test_a_resize_shows_the_plan_being_agreed_and_then_the_effect(own: Filled, view: Open) -> None:
    page = charts(view(own.site).go(own.page("digits")))
    expect(page.locator("#size-now")).to_contain_text("3 workers train")
    page.get_by_label("Workers", exact=True).first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#workers")).to_have_value("4")
    page.get_by_placeholder("Reason").fill("night shift")
    page.get_by_role("button", name="Resize").click()
    expect(page.locator("#size-now")).to_contain_text("From 3 to 4 workers")
    job = own.jobs["digits"]
    own.site.write(lambda sample: train_on(sample, job, 3300, 4, grown(3200, 4, sample.clock.now_s)))
    expect(page.locator("#size-now")).to_contain_text("4 workers train")
    expect(page.locator("#size-now")).to_contain_text("Since step 3,200, changed in 0.19 s, no step lost.")
    page.get_by_role("button", name="Let the service choose").click()
    expect(page.get_by_role("button", name="Let the service choose")).to_be_hidden()


def test_the_slider_tells_what_each_size_is_foreseen_to_bring(own: Filled, view: Open) -> None:
    page = charts(view(own.site).go(own.page("digits")))
    foreseen = page.get_by_role("region", name="Throughput foreseen by number of workers")
    expect(foreseen.get_by_role("row").last).to_contain_text("never tried")
    lit = foreseen.locator("tr.lit")
    expect(lit).to_contain_text("now")
    slider = page.get_by_label("Workers", exact=True).first
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(lit).to_contain_text("never tried")
    expect(slider).to_have_attribute(
        "aria-valuetext", re.compile(r"^4 workers, about .* samples a second, .*never tried$")
    )
    page.locator("#workers").fill("1")
    expect(lit).to_contain_text("measured")
    # News of the job replaces the list; the size that was chosen stays lit, and what was typed stays.
    job = own.jobs["digits"]
    own.site.write(lambda sample: train_on(sample, job, 3300, 3))
    expect(lit).to_contain_text("never tried")
    expect(lit).to_have_attribute("data-size", "1")
    expect(page.locator("#workers")).to_have_value("1")


def test_the_batch_tab_tells_loads_and_what_other_batches_would_bring(shared: Filled, view: Open) -> None:
    page = view(shared.site, 390).go(shared.page("digits", "?tab=batch"))
    loads = page.get_by_role("table").filter(has_text="Bandwidth")
    expect(loads.get_by_role("row")).to_have_count(4)
    expect(loads.get_by_role("row").nth(1)).to_contain_text("713 MB at 42")
    batches = page.get_by_role("region", name="Throughput by batch")
    expect(batches.get_by_role("row", name="128 now")).to_contain_text("12.5k to 14k")
    expect(page.get_by_role("img", name=re.compile("^Gradient noise scale from step 16"))).to_be_visible()


def test_a_size_outside_the_range_is_refused_in_words(own: Filled, view: Open) -> None:
    viewer = view(own.site)
    page = viewer.go(own.page("digits"))
    page.evaluate("document.getElementById('workers').removeAttribute('max')")
    page.locator("#workers").fill("9")
    page.get_by_role("button", name="Resize").click()
    expect(page.locator("#size").get_by_role("alert")).to_contain_text("9 is outside the job's range 1 to 4")
    viewer.allow("422")


def test_cancel_asks_once_and_shows_only_what_is_legal_then(own: Filled, view: Open) -> None:
    page = view(own.site).go(own.page("digits"))
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel digits?")
    page.keyboard.press("Escape")
    expect(page.locator("#summary")).to_contain_text("Running")
    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#summary")).to_contain_text("Cancelling")
    expect(page.locator("#actions button")).to_have_count(0)


def test_a_job_that_recovers_tells_what_was_lost_and_what_it_waits_for(shared: Filled, view: Open) -> None:
    page = charts(view(shared.site).go(shared.page("speech-tiny")))
    expect(page.locator("#summary")).to_contain_text("Recovering")
    expect(page.locator("#summary")).to_contain_text("step 400 of 3,000")
    explained = page.get_by_role("region", name="What it is doing")
    expect(explained).to_contain_text("It recovers: 0 of 2 workers train.")
    expect(explained).to_contain_text("2 more are being started.")
    first = page.locator("#happened li").first
    expect(first).to_contain_text("Worker 0 was lost on node 5f1c0de2")
    expect(first).to_contain_text("nobody trains")
    page.goto(f"{shared.site.url}{shared.page('speech-tiny', '?tab=events')}")
    expect(page.locator("#events tbody tr").first).to_contain_text("Recovering")


def test_a_paused_job_resumes_without_a_question(own: Filled, view: Open) -> None:
    page = view(own.site).go(own.page("chargpt-small"))
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#summary")).to_contain_text("Queued")
    expect(page.locator("#actions")).to_contain_text("Pause")


def test_a_mark_tells_on_focus_who_why_and_what_it_cost(shared: Filled, view: Open) -> None:
    page = charts(view(shared.site).go(shared.page("digits")))
    mark = page.locator(".marks button.k-worker_lost")
    assert mark.get_attribute("aria-label") == (
        "Worker 2 was lost on node b82e66d1; went on with 2 of 3 after 0.18 s; no step lost"
    )
    unlit = page.locator("[data-lane=workers] canvas").screenshot()
    mark.focus()
    detail = page.locator(".mark-detail")
    expect(detail).to_contain_text("went on with 2 of 3 after 0.18 s; no step lost")
    expect(detail).to_contain_text("its process was killed (SIGKILL)")
    assert page.locator("[data-lane=workers] canvas").screenshot() != unlit
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()


def test_axis_and_range_stand_in_the_address(shared: Filled, view: Open) -> None:
    viewer = view(shared.site)
    page = charts(viewer.go(shared.page("digits")))
    page.get_by_role("link", name="By clock").click()
    expect(page).to_have_url(re.compile(r"x=clock"))
    page.get_by_role("link", name="By step").click()
    expect(page).not_to_have_url(re.compile(r"x=clock"))
    plot = charts(page).locator("[data-lane=loss] .u-over").bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + plot["width"] * 0.5, plot["y"] + 40)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] * 0.75, plot["y"] + 50, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=1[45]\d\d&to=2[34]\d\d"))
    again = charts(viewer.go(page.url.removeprefix(shared.site.url)))
    expect(again.get_by_role("button", name="Show all of it")).to_be_visible()
    again.get_by_role("button", name="Show all of it").click()
    expect(again).not_to_have_url(re.compile(r"from="))


def test_charts_can_be_read_and_zoomed_by_keyboard(shared: Filled, view: Open) -> None:
    page = charts(view(shared.site).go(shared.page("digits")))
    plot = page.locator("[data-lane=throughput] .plot")
    assert re.match(r"Samples a second: from [\d.]+k to 13\.\dk\.", plot.get_attribute("aria-label") or "")
    plot.focus()
    value = page.locator("[data-lane=throughput] output")
    now = value.inner_text()
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    assert value.inner_text() != now
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile(r"from="))
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile(r"from="))


def test_a_failed_job_explains_itself_and_offers_a_retry(shared: Filled, view: Open) -> None:
    page = view(shared.site).go(shared.page("wide-fails"))
    why = page.get_by_role("region", name="Why it failed")
    expect(why).to_contain_text("expected scalar type Long but found Float")
    expect(why).to_contain_text('File "train.py", line 41, in loss')
    expect(why).to_contain_text("What helps:")
    expect(page.get_by_role("button", name="Retry from the last checkpoint")).to_be_visible()
    why.get_by_role("link", name="First error in the logs").click()
    expect(page.locator("#first-error")).to_contain_text("Traceback (most recent call last)")


def test_a_retry_is_another_attempt_and_the_first_keeps_its_reason(own: Filled, view: Open) -> None:
    page = view(own.site).go(own.page("wide-fails", "?tab=attempts"))
    rows = page.locator("#attempts tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("Failed")
    page.get_by_role("button", name="Retry from the last checkpoint").click()
    expect(page.locator("#summary")).to_contain_text("Queued")

    async def start(sample: Sample) -> None:
        row = await sample.store.reconciler.job(own.jobs["wide-fails"].id)
        assert row is not None
        await sample.start(row, 1)

    own.site.write(start)
    expect(rows).to_have_count(2)
    first, second = (rows.filter(has=page.get_by_role("cell", name=n, exact=True)) for n in ("1", "2"))
    expect(second).to_contain_text("Running")
    expect(second).not_to_contain_text("raised an error")
    expect(first).to_contain_text("raised an error")
    expect(first).not_to_contain_text("Running")


def test_two_specs_are_held_beside_each_other(shared: Filled, view: Open) -> None:
    page = view(shared.site).go(shared.page("digits", "?tab=spec"))
    page.get_by_label("Compare with").select_option(shared.jobs["wide-fails"].id)
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("with="))
    page.wait_for_load_state()  # a table that is still being read has fewer rows
    rows = page.get_by_role("region", name="Differences").locator("tbody tr")
    differing = {row.locator("td").first.inner_text(): row.locator("td").all_inner_texts()[1:] for row in rows.all()}
    assert differing["config.hidden"] == ["128", "512"]
    assert differing["steps"] == ["5000", "2000"]
    assert "entrypoint" not in differing
    expect(page.get_by_label("The resolved spec as YAML")).to_contain_text("hidden: 128")


def test_a_waiting_job_says_what_it_waits_for(shared: Filled, view: Open) -> None:
    page = view(shared.site).go(shared.page("chargpt-large"))
    why = page.get_by_role("region", name="Why it waits")
    expect(why).to_contain_text("It waits for 4 CPUs; 3 are free.")
    expect(why).to_contain_text("Lower workers.min to 3")
    expect(page.locator("[data-note]")).to_contain_text("No point yet")


def test_a_remedy_makes_room_and_comes_back(own: Filled, view: Open) -> None:
    page = view(own.site).go(own.page("chargpt-large"))
    page.get_by_role("button", name="Pause digits, which holds 3 workers").click()
    page.wait_for_url(own.site.url + own.page("chargpt-large"))
    expect(page.get_by_role("button", name="Pause digits, which")).to_have_count(0)
    page.goto(own.site.url + own.page("digits"))
    expect(page.locator("#summary")).to_contain_text("Pausing")


def test_a_finished_job_is_whole(shared: Filled, view: Open) -> None:
    page = charts(view(shared.site).go(shared.page("mnist-warmup")))
    expect(page.locator("#summary")).to_contain_text("100 %")
    expect(page.locator("#happened")).to_contain_text("The job succeeded at step 1,500")
    expect(page.locator("#size")).to_have_count(0)
    assert page.locator("#actions button").all_inner_texts() == ["Delete"]


def test_the_system_tab_maps_each_rank_over_time(shared: Filled, view: Open) -> None:
    page = view(shared.site, 390).go(shared.page("mnist-warmup", "?tab=system"))
    heat = page.get_by_role("table", name="Each rank over time")
    expect(heat.get_by_role("row")).to_have_count(3)
    expect(heat.get_by_role("row").last).to_contain_text("no step")
    page.wait_for_function(  # asked again where the table is replaced meanwhile: what is out of the page has no colour
        "new Set([...document.querySelectorAll('tbody td[class^=l]')].map((c) => getComputedStyle(c).backgroundColor))"
        ".size > 1"
    )
    page.get_by_role("link", name="Memory").click()
    expect(heat.locator("tbody tr").first.locator("td").last).to_contain_text("MB")
    assert "heat=memory" in page.url


def test_a_message_without_a_space_stays_in_the_page(own: Filled, view: Open) -> None:
    word = "x" * 1000
    row = replace(grown(3200, 4, own.site.write(now)), kind=TimelineKind.FAILURE, reason=word, actor="digits")
    own.site.write(lambda sample: train_on(sample, own.jobs["digits"], 3200, 4, row))
    page = view(own.site, 390).go(own.page("digits"))
    expect(page.locator("#happened li").first).to_contain_text(word[1:])
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_logs_are_text_searched_and_filtered(shared: Filled, view: Open) -> None:
    page = view(shared.site).go(shared.page("wide-fails", "?tab=logs"))
    expect(page.locator("pre.log")).to_contain_text("<b>not bold</b>")
    assert page.locator("pre.log b").count() == 0
    page.goto(shared.site.url + shared.page("digits", "?tab=logs"))
    search = page.get_by_role("searchbox")
    expect(search).to_be_visible()
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("step 2990 ")
    expect(page.locator("pre.log mark")).to_have_count(3)
    expect(page).to_have_url(re.compile(r"q=step"))
    page.get_by_label("Worker").select_option("1")
    expect(page.locator("pre.log mark")).to_have_count(1)
    search.fill("no such line")
    expect(page.locator("#log-part")).to_contain_text("contains “no such line”")


def test_logs_follow_their_end(own: Filled, view: Open) -> None:
    page = view(own.site).go(own.page("digits", "?tab=logs"))
    job = own.jobs["digits"]
    own.site.write(lambda sample: sample.log(job, "the very last line\n"))
    expect(page.locator("pre.log")).to_contain_text("the very last line")
    assert page.locator("pre.log").evaluate("(log) => log.scrollHeight - log.scrollTop - log.clientHeight < 24")


def test_points_that_cannot_be_fetched_leave_the_rest_of_the_page(shared: Filled, view: Open) -> None:
    viewer = view(shared.site)
    viewer.page.route("**/metrics?*", lambda route: route.fulfill(status=503, body="{}"))
    page = viewer.go(shared.page("digits"))
    expect(page.locator("[data-note]")).to_contain_text("The points cannot be fetched (the service answered 503)")
    expect(page.locator("#happened li").first).to_be_visible()
    viewer.page.unroute("**/metrics?*")
    charts(page)
    expect(page.locator("[data-note]")).to_be_hidden()
    viewer.allow("503")


def test_a_lost_connection_is_told_and_recovers_by_itself(own: Filled, view: Open) -> None:
    viewer = view(own.site)
    page = charts(viewer.go(own.page("digits")))
    own.site.stop()
    expect(page.locator("#stale")).to_be_visible()
    expect(page.locator("#stale")).to_contain_text(re.compile(r"Live connection lost \d+ s ago, trying again"))
    job = own.jobs["digits"]
    own.site.write(lambda sample: train_on(sample, job, 3500, 3))
    own.site.start()
    expect(page.locator("#stale")).to_be_hidden()
    expect(page.locator("#summary")).to_contain_text("step 3,500 of 5,000")
    viewer.allow("ERR_")
    viewer.allow("htmx:")


def test_checkpoints_and_files_can_be_downloaded(shared: Filled, view: Open) -> None:
    page = view(shared.site).go(shared.page("digits", "?tab=checkpoints"))
    expect(page.locator("#checkpoints tbody tr")).to_have_count(2)
    with page.expect_download() as weights:
        page.get_by_role("link", name="Download weights of step 3000").click()
    assert weights.value.suggested_filename == "digits-3000.safetensors"
    assert weights.value.path().read_bytes().endswith(WEIGHTS_BYTES)
    page.get_by_role("link", name="Files").click()
    with page.expect_download() as file:
        page.get_by_role("link", name="confusion matrix.csv").click()
    assert file.value.path().read_text() == "0,1\n9,8\n"


def test_an_id_is_short_and_can_be_copied(shared: Filled, view: Open) -> None:
    viewer = view(shared.site, permissions=["clipboard-read", "clipboard-write"])
    page = viewer.go(shared.page("digits"))
    page.get_by_role("button", name="Copy job id").click()
    expect(page.locator("#said")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == shared.jobs["digits"].id

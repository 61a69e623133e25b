"""The list of jobs, compare, cluster and login, as a person uses them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, Route, expect

from service.records import Autoscaling
from service.states import JobState
from tests.browser.conftest import Filled, Open
from tests.browser.history import Course
from tests.browser.sample import Sample
from tests.browser.site import Site

pytestmark = pytest.mark.browser


def names(page: Page) -> list[str]:
    return page.locator("table.jobs a.name").all_inner_texts()


def test_a_row_tells_state_progress_metric_size_speed_and_cost(shared: Filled, view: Open) -> None:
    page = view(shared.site).go("/jobs")
    row = page.locator("table.jobs tbody tr", has_text="digits").filter(has_text="team=vision")
    for text in ("Running", "62 %", "left", "97.2 %", "accuracy", "3 of 1–4", "EUR"):
        expect(row).to_contain_text(text)
    assert (row.locator("svg.spark polyline").get_attribute("points") or "").count(",") > 10


def test_states_are_filters_with_counts_and_stand_in_the_address(shared: Filled, view: Open) -> None:
    page = view(shared.site).go("/jobs")
    page.get_by_role("link", name="Failed 2").click()
    expect(page).to_have_url(re.compile(r"state=FAILED"))
    expect(page.locator("table.jobs a.name")).to_have_text(["wide-fails", "digits-lr-9"])


def test_slash_searches_by_name_or_label(shared: Filled, view: Open) -> None:
    page = view(shared.site).go("/jobs")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("chargpt")
    expect(page.locator("table.jobs a.name")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"q=chargpt"))
    page.get_by_role("searchbox").fill("team=vision")
    expect(page.locator("table.jobs a.name")).to_have_text(["digits"])


def test_j_and_k_go_through_the_rows(shared: Filled, view: Open) -> None:
    page = view(shared.site).go("/jobs")
    listed = names(page)
    for key, at in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(page.locator("table.jobs a.name").nth(at)).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("[data-count]")).to_have_text("With the 1 selected:")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(listed[1])


def test_selected_jobs_are_cancelled_together_after_one_question(own: Filled, view: Open) -> None:
    page = view(own.site).go("/jobs")
    for name in ("digits", "chargpt-large"):
        page.get_by_label(re.compile(rf"Select {name} ")).check()
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("since their last checkpoints is lost")
    dialog.get_by_role("button", name="Go back").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("table.jobs")).to_contain_text("Running")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog.get_by_role("button", name="Cancel them").click()
    expect(page.locator("table.jobs tr", has_text="chargpt-large")).to_contain_text("Cancelled")
    expect(page.locator("table.jobs tr", has_text="team=vision")).to_contain_text("Cancelling")


def test_selected_jobs_are_paused_together_and_one_that_ended_is_left_as_it_is(own: Filled, view: Open) -> None:
    page = view(own.site).go("/jobs")
    for name in ("digits", "chargpt-large", "wide-fails"):
        page.get_by_label(re.compile(rf"Select {name} ")).check()
    page.get_by_role("button", name="Pause with checkpoint").click()
    expect(page.locator("table.jobs tr", has_text="chargpt-large")).to_contain_text("Paused")
    expect(page.locator("table.jobs tr", has_text="team=vision")).to_contain_text("Pausing")
    expect(page.locator("table.jobs tr", has_text="wide-fails")).to_contain_text("Failed")


def test_a_new_job_appears_by_itself_and_a_selection_stays(own: Filled, view: Open) -> None:
    page = view(own.site).go("/jobs")
    box = page.get_by_label(re.compile(r"Select digits "))
    box.check()
    own.site.write(lambda sample: sample.submit(Course("late-comer", 100, 0, [(0, 1)])))
    expect(page.locator("table.jobs")).to_contain_text("late-comer")
    expect(box).to_be_checked()


def test_what_was_written_between_the_page_and_its_stream_appears_as_well(own: Filled, view: Open) -> None:
    viewer = view(own.site)

    def write_before(route: Route) -> None:
        own.site.write(lambda sample: sample.submit(Course("in-between", 100, 0, [(0, 1)])))
        route.continue_()

    viewer.page.route("**/api/v1/stream?*", write_before, times=1)
    page = viewer.go("/jobs")
    expect(page.locator("table.jobs")).to_contain_text("in-between")


def test_many_jobs_come_in_pages(own: Filled, view: Open) -> None:
    async def submit_many(sample: Sample) -> None:
        for number in range(60):
            await sample.submit(Course(f"many-{number:02d}", 100, 0, [(0, 1)]))

    own.site.write(submit_many)
    page = view(own.site).go("/jobs")
    assert names(page)[0] == "many-59"
    assert len(names(page)) == 50
    page.get_by_role("link", name="Older jobs").click()
    expect(page.locator("table.jobs a.name").first).to_have_text("many-09")
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("table.jobs a.name").first).to_have_text("many-59")


def test_selected_jobs_are_compared(shared: Filled, view: Open) -> None:
    page = view(shared.site).go("/jobs")
    for name in ("digits", "mnist-warmup"):
        page.get_by_label(re.compile(rf"Select {name} ")).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_have_text("Compare")
    expect(page.locator(".key")).to_have_count(2)
    expect(page.get_by_role("region", name="Spec differences")).to_contain_text("labels.team")
    page.get_by_label("Metric").select_option("loss")
    expect(page).to_have_url(re.compile(r"key=loss"))
    expect(page.locator(".lane-title")).to_contain_text("Training loss")


def test_the_cluster_shows_what_runs_where_and_what_is_lacking(shared: Filled, view: Open) -> None:
    page = view(shared.site).go("/cluster")
    alder = page.get_by_label("Node alder", exact=True)
    expect(alder).to_contain_text("3 of 4 CPUs in use")
    expect(alder.locator("a.cell")).to_have_text([re.compile(r"digits\s*worker 0 · compute"), re.compile(r"worker 2")])
    expect(page.get_by_label("Demand not met")).to_contain_text("chargpt-large lacks 4 workers")


def test_what_the_autoscaler_does_about_it_is_told(own: Filled, view: Open) -> None:
    page = view(own.site).go("/cluster")
    asked = Autoscaling(num_coming=2, wanted_by=(own.jobs["chargpt-large"].id,))
    own.site.write(lambda sample: sample.cluster(autoscaling=asked))
    demand = page.get_by_label("Demand not met")
    expect(demand).to_contain_text("2 nodes are being started for chargpt-large.")
    refused = replace(asked, num_coming=0, is_infeasible=True, failures=("the quota of the region is used up",))
    own.site.write(lambda sample: sample.cluster(autoscaling=refused))
    expect(demand).to_contain_text("no kind of node, or none left, with room for what is wanted for chargpt-large.")
    expect(demand).to_contain_text("A node could not be started: the quota of the region is used up.")


def test_a_node_is_drained_and_used_again(own: Filled, view: Open) -> None:
    page = view(own.site).go("/cluster")
    alder = page.get_by_label("Node alder", exact=True)
    page.get_by_role("button", name="Drain node alder").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("workers there move to other nodes")
    dialog.get_by_role("button", name="Drain it").click()
    expect(alder).to_contain_text("drained")
    expect(page.get_by_label("Decided of late")).to_contain_text("Node alder is drained.")
    page.get_by_role("button", name="Use again node alder").click()
    expect(alder).not_to_contain_text("drained")
    expect(page.get_by_role("button", name="Drain node alder")).to_be_visible()


CLICK_WHAT_COMES = """() => document.addEventListener("htmx:afterSwap", (event) => setTimeout(() => {
  const button = document.querySelector("#nodes [data-ask]");
  if (event.detail.target.id !== "nodes" || button.dataset.agreed) return;
  button.dataset.agreed = "yes";
  button.click();
}))"""


def test_a_button_that_just_came_acts_on_this_page(own: Filled, view: Open) -> None:
    page = view(own.site).go("/cluster")
    page.evaluate(CLICK_WHAT_COMES)
    own.site.write(lambda sample: sample.cluster(autoscaling=Autoscaling(num_coming=2)))
    expect(page.get_by_label("Node alder", exact=True)).to_contain_text("drained")


def test_a_button_that_is_held_down_is_not_replaced_by_what_is_new(own: Filled, view: Open) -> None:
    page = view(own.site).go("/cluster")
    page.get_by_role("button", name="Drain node alder").hover()
    page.mouse.down()
    with page.expect_response(lambda response: "/cluster" in response.url):
        own.site.write(lambda sample: sample.cluster(autoscaling=Autoscaling(num_coming=2)))
    expect(page.get_by_label("Demand not met")).not_to_contain_text("2 nodes are being started")
    page.mouse.up()
    expect(page.get_by_role("dialog")).to_contain_text("workers there move to other nodes")
    expect(page.get_by_label("Demand not met")).to_contain_text("2 nodes are being started")


def test_a_quarantined_node_says_why_and_is_used_again(own: Filled, view: Open) -> None:
    page = view(own.site).go("/cluster")
    alder = page.get_by_label("Node alder", exact=True)
    own.site.write(lambda sample: sample.quarantine("three workers were lost there within ten minutes"))
    expect(alder).to_contain_text("quarantined")
    expect(alder).to_contain_text("three workers were lost there within ten minutes")
    expect(page.get_by_label("Decided of late")).to_contain_text("Node alder is quarantined: three workers")
    page.get_by_role("button", name="Use again node alder").click()
    expect(alder).not_to_contain_text("quarantined")


def test_while_ray_is_away_a_banner_says_what_still_works(own: Filled, view: Open) -> None:
    page = view(own.site).go(own.page("mnist-warmup"))
    own.site.write(lambda sample: sample.cluster(is_up=False))
    expect(page.locator("#ray")).to_contain_text("Ray is away")
    expect(page.locator("#ray")).to_contain_text("finished jobs can be read as usual")
    expect(page.locator("#summary")).to_contain_text("Succeeded")
    own.site.write(lambda sample: sample.cluster())
    expect(page.locator("#ray")).to_have_text("")


def test_an_empty_installation_says_how_to_begin(empty: Site, view: Open) -> None:
    viewer = view(empty)
    page = viewer.go("/jobs")
    expect(page.locator("#list")).to_contain_text("No job yet")
    expect(page.locator("#list pre")).to_contain_text("concertina submit")
    empty.write(lambda sample: sample.submit(Course("first", 100, 0, [(0, 1)])))
    expect(page.locator("table.jobs")).to_contain_text("first")


def test_everything_can_be_read_without_javascript(shared: Filled, view: Open) -> None:
    page = view(shared.site, java_script_enabled=False).go("/jobs")
    assert "digits" in names(page)
    page.get_by_role("link", name="digits", exact=True).first.click()
    for text in ("Running", "step 3,120 of 5,000", "Worker 2 was lost on node b82e66d1", "charts need JavaScript"):
        expect(page.locator("main")).to_contain_text(text)
    for tab, text in (
        ("Logs", "step 3110 of 5000"),
        ("Metrics", "Gradient norm"),
        ("System", "412 MB"),
        ("Checkpoints", "1.21 MB"),
        ("Spec", "global_size: 128"),
    ):
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.locator("main")).to_contain_text(text)


def test_a_dangerous_action_asks_without_javascript_too(own: Filled, view: Open) -> None:
    page = view(own.site, java_script_enabled=False).go(own.page("digits"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1")).to_have_text("Cancel digits?")
    expect(page.locator("main")).to_contain_text("since its last checkpoint is lost")
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#summary")).to_contain_text("Cancelling")


def test_who_is_not_logged_in_comes_to_the_page_after_the_token(shared: Filled, view: Open) -> None:
    viewer = view(shared.site, is_logged_in=False)
    page = viewer.go(shared.page("digits", "?tab=events"))
    page.get_by_label("Token").fill("ctn_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    viewer.allow("401")
    viewer.allow("htmx:")  # a part that was on its way while the session ended
    page.get_by_label("Token").fill(shared.site.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h2#events-title")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_times_are_in_the_viewers_zone_with_utc_beside(own: Filled, view: Open) -> None:
    page = view(own.site, timezone_id="Asia/Kathmandu").go(own.page("digits"))
    time = page.locator("#summary time")
    stamp = time.get_attribute("datetime")
    expected = page.evaluate(
        "(t) => new Date(t).toLocaleTimeString('en-GB', {hour: '2-digit', minute: '2-digit'})", stamp
    )
    assert time.inner_text().endswith(expected)
    assert time.get_attribute("title") == f"{stamp[:10]} {stamp[11:19]} UTC"
    assert expected[:2] != stamp[11:13]


def test_states_that_jobs_went_through_are_told_in_order(shared: Filled, view: Open) -> None:
    page = view(shared.site).go(shared.page("chargpt-small", "?tab=events"))
    to = page.locator("#events tbody tr td:nth-child(3)").all_inner_texts()
    assert to == [
        s.capitalize()
        for s in (JobState.PAUSED, JobState.PAUSING, JobState.RUNNING, JobState.STARTING, JobState.QUEUED)
    ]

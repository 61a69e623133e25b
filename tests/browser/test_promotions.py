"""What became of a sweep's winner, as a person reads it: on the sweep's page and on that of the configuration."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from service.sweep_records import SweepRow
from tests.browser.conftest import Open
from tests.browser.sample import Sample
from tests.browser.site import Site
from tests.browser.test_looks import violations
from tests.service.given import spec
from tests.service.swept import JOB, Swept, point

pytestmark = pytest.mark.browser


async def fill(sample: Sample) -> SweepRow:
    """A sweep whose second trial is the better one in every pair of runs."""
    await sample.begin()
    await sample.store.configurations.create("digits", spec(**{**JOB, "steps": None}))
    swept = await Swept.created(sample.store, sample.clock, sample.fence, promote="digits")
    await swept.begin(point(0.002), point(0.01, 64))
    await swept.complete(0, 0.8)
    await swept.complete(1, 0.95)
    await swept.finish()
    await swept.conclude({-1: 0.9, 0: 0.85, 1: 0.92}.__getitem__)
    return await swept.row()


def test_once_the_configuration_is_changed_by_hand_the_winner_may_be_held_against_it_again(
    empty: Site, view: Open
) -> None:
    sweep = empty.write(fill)
    page = view(empty).go(f"/sweeps/{sweep.id}")
    button = page.get_by_role("button", name="Promote to digits")
    expect(page.get_by_role("region", name="Promotion")).to_contain_text("digits is at version 2 now")
    expect(button).to_have_count(0)

    async def change(sample: Sample) -> None:
        in_use = await sample.store.configurations.configuration("digits")
        assert in_use is not None
        await sample.store.configurations.replace(in_use, spec(**{**JOB, "steps": None, "seed": 3}))

    empty.write(change)
    page.reload()
    button.click()
    expect(page.get_by_role("region", name="Promotion")).to_contain_text("once the sweep has ended")
    expect(page.get_by_role("button", name="Stop comparing")).to_be_visible()
    expect(button).to_have_count(0)
    assert page.get_by_role("alert").count() == 0


def test_a_promotion_is_told_with_its_evidence_and_leads_to_the_configuration(empty: Site, view: Open) -> None:
    sweep = empty.write(fill)
    page = view(empty).go(f"/sweeps/{sweep.id}")
    told = page.get_by_role("region", name="Promotion")
    expect(told).to_contain_text("digits is at version 2 now: trial 1")
    compared = page.get_by_role("region", name="Compared on new seeds").locator("tbody tr")
    expect(compared).to_have_count(3)
    expect(compared.filter(has_text="trial 1")).to_contain_text("2.2 % (2.2 to 2.2 %)")
    told.get_by_role("link", name="digits", exact=True).click()
    history = page.get_by_role("region", name="Replaced versions").locator("tbody tr")
    expect(history).to_contain_text("is better by 2.2 %")
    for address in (f"/sweeps/{sweep.id}", "/configurations", "/configurations/digits"):
        page.goto(empty.url + address)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                assert violations(page) == [], (address, width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)

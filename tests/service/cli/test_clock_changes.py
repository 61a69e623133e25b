"""``concertina schedule next`` against a service whose clock stands shortly before a change of the clocks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.browser.scheduled import BEFORE_CHANGE_S, CHANGE, SCHEDULED_S, fill_before_change
from tests.browser.site import Site
from tests.service.cli.calls import Run


def test_a_coming_change_of_clocks_is_told_under_the_next_times(concertina: Run, tmp_path: Path) -> None:
    site = Site(tmp_path, clock=lambda: BEFORE_CHANGE_S)
    site.write(fill_before_change, BEFORE_CHANGE_S - SCHEDULED_S)
    site.start()
    variables = {"CONCERTINA_URL": site.url, "CONCERTINA_HOME": str(site.home)}
    told = concertina("schedule", "next", "nightly-digits", "-n", "3", **variables)
    document = concertina("schedule", "next", "nightly-digits", "-o", "json", **variables)
    site.stop()
    assert [line.strip() for line in told.stdout.splitlines()][-1] == CHANGE
    assert [time in told.stdout for time in ("01:30 +1030", "02:00 +", "02:30 +11")] == [True, False, True]
    assert json.loads(document.stdout)["notices"] == [CHANGE]

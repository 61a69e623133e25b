"""What is told of a promotion that ended between the look at a sweep and the stop."""

from __future__ import annotations

from typing import Any

import pytest

from service.promotion_words import stopped

NO_LONGER = "its winner is held against kept no longer, and kept stays at version 1"
NOT_AT_ALL = "its winner will not be held against kept"
CAME_FIRST = "kept stays at version 1: not better"


def sweep(state: str, promotion: str | None) -> dict[str, Any]:
    told = {"STOPPED": "stopped by hand", "KEPT": "not better"}
    runs = {"started": 4, "ended": 2}
    asked = {"configuration": "kept", "state": promotion, "base_version": 1, "version": None, "runs": runs}
    return {"state": state, "promotion": promotion and {**asked, "reason": told.get(promotion)}}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (("SUCCEEDED", "RUNNING"), ("SUCCEEDED", "STOPPED"), NO_LONGER),
        (("SUCCEEDED", "RUNNING"), ("SUCCEEDED", "KEPT"), CAME_FIRST),
        (("RUNNING", "RUNNING"), ("STOPPED", "STOPPED"), NO_LONGER),
        (("RUNNING", "RUNNING"), ("STOPPED", "KEPT"), CAME_FIRST),
        (("SUCCEEDED", "WAITING"), ("SUCCEEDED", "STOPPED"), NOT_AT_ALL),
        (("SUCCEEDED", "WAITING"), ("SUCCEEDED", "KEPT"), CAME_FIRST),
        (("RUNNING", "WAITING"), ("STOPPED", None), NOT_AT_ALL),
        (("RUNNING", "WAITING"), ("STOPPED", "KEPT"), NOT_AT_ALL),
        (("RUNNING", "WAITING"), ("SUCCEEDED", "KEPT"), CAME_FIRST),
        (("SUCCEEDED", "STOPPED"), ("SUCCEEDED", "STOPPED"), "nothing was promoted to kept: stopped by hand"),
        (("RUNNING", "STOPPED"), ("STOPPED", "STOPPED"), ""),
        (("RUNNING", None), ("STOPPED", None), ""),
    ],
)
def test_that_it_was_stopped_is_told_only_where_it_was(
    before: tuple[str, str | None], after: tuple[str, str | None], told: str
) -> None:
    assert stopped(sweep(*before), sweep(*after)) == told

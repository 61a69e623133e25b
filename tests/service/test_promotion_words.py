"""What is told of a promotion: of one that ended between the look at a sweep and the stop, and of what it replaced."""

from __future__ import annotations

from typing import Any

import pytest

from service import configuration_words
from service.promotion_words import stopped, used

NO_LONGER = "its winner is held against kept no longer, and kept stays at version 1"
NOT_AT_ALL = "its winner will not be held against kept"
CAME_FIRST = "kept stays at version 1: not better"


def sweep(state: str, promotion: str | None) -> dict[str, Any]:
    told = {"STOPPED": "stopped by hand", "KEPT": "not better"}
    runs = {"started": 4, "ended": 2}
    versions = {"base_version": 1, "version": None, "current_version": 1}
    asked = {"configuration": "kept", "state": promotion, **versions, "runs": runs}
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


@pytest.mark.parametrize(("saving", "told"), [(0.0512, "5.12"), (0.75, "75"), (0.998, "99.8"), (1.0, "100")])
def test_what_is_cheaper_is_told_by_how_much(saving: float, told: str) -> None:
    compared = {"effect": 0.001, "low": -0.002, "high": 0.004, "num_pairs": 8}
    winner = {"trial": 1, "params": {}, "saving": saving, **compared}
    assert configuration_words.evidence({"trial": 1, "because": "cheaper", "finalists": [winner]}) == (
        f"trial 1 costs {told} % less and is as good: better by 0.1 % (-0.2 to 0.4 %) in 8 pairs of runs"
    )


@pytest.mark.parametrize(
    ("effect", "told"), [(0.0012, "0.12 % (0.12"), (3.179, "320 % (320"), (-12.0, "-1,200 % (-1,200"), (0.0, "0 % (0 ")]
)
def test_an_effect_is_told_as_people_write_percents(effect: float, told: str) -> None:
    assert configuration_words.effect({"effect": effect, "low": effect, "high": effect, "num_pairs": 8}).startswith(
        told
    )


@pytest.mark.parametrize(
    ("number", "state", "told"),
    [
        (1, "RUNNING", "4 runs: 40 s of worker time, not in the cost of the trials"),
        (
            2,
            "KEPT",
            "4 runs of the latest promotion, of which 2 are being ended: 40 s of worker time, not in the cost of",
        ),
    ],
)
def test_what_runs_took_is_told_as_time_and_of_the_latest_promotion_where_there_were_others(
    number: int, state: str, told: str
) -> None:
    promotion = {"number": number, "state": state, "runs": {"started": 4, "ended": 2}, "worker_s": 40.0}
    assert used(promotion).startswith(told)

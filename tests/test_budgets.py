"""What is told of the seconds that tests take."""

from __future__ import annotations

import pytest

from tests.budgets import BUDGETS_S, Budgets


def report(duration_s: float, *markers: str) -> pytest.TestReport:
    place = ("file", 1, "test")
    # A folder's name is among the keywords, too.
    made = pytest.TestReport("test", place, {"browser": 1}, "passed", None, "call", duration=duration_s)
    made.__dict__["markers"] = list(markers)
    return made


def test_each_marker_of_a_test_is_charged_and_going_over_a_budget_is_a_warning() -> None:
    budgets = Budgets()
    budgets.pytest_runtest_logreport(report(BUDGETS_S["network"] + 1, "cluster", "network"))
    budgets.pytest_runtest_logreport(report(2.0, "anyio"))
    budgets.pytest_runtest_logreport(report(3.0))
    assert budgets.told() == "seconds of tests by marker: none 5 of 600, cluster 561 of 2200, network 561 of 560"
    assert budgets.warnings() == ["WARNING: tests marked 'network' took 561 s, over their budget of 560 s"]

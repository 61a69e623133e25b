"""What the tests of each marker may take, and what they took: told after every run, and no reason to fail one."""

from __future__ import annotations

from collections import Counter

import pytest

UNMARKED = "none"
BUDGETS_S = {
    UNMARKED: 600.0,
    "cluster": 2200.0,
    "browser": 170.0,
    "postgres": 330.0,
    "network": 560.0,
    "faults": 1170.0,
    "mount": 130.0,
}
"""Of a whole run, in seconds of tests on two shared cores: 35 minutes, as ``.ci/run`` runs faults three at a time, all
others two; beside network, whose tests have another marker, too. A test counts for each of its markers.
"""


def note_markers(report: pytest.TestReport, item: pytest.Item) -> None:
    """Let a report tell the markers of its test, also in another process; its keywords tell those of folders, too."""
    report.__dict__["markers"] = sorted({marker.name for marker in item.iter_markers()})


def markers_of(report: pytest.TestReport) -> list[str]:
    """The markers of a report's test; none of a process of tests that crashed, which reports by itself."""
    found: list[str] = report.__dict__.get("markers", [])
    return found


class Budgets:
    """A plugin that adds up how long tests take, with what they set up and tear down."""

    def __init__(self) -> None:
        self._used_s: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        marked = [marker for marker in BUDGETS_S if marker in markers_of(report)]
        for marker in marked or [UNMARKED]:
            self._used_s[marker] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._used_s:
            terminalreporter.write_line(self.told())
        for warning in self.warnings():
            terminalreporter.write_line(warning, yellow=True)

    def told(self) -> str:
        """One line: what was used, of how much."""
        used = [
            f"{name} {self._used_s[name]:.0f} of {most:.0f}" for name, most in BUDGETS_S.items() if self._used_s[name]
        ]
        return f"seconds of tests by marker: {', '.join(used)}"

    def warnings(self) -> list[str]:
        """A line for each budget that was gone over."""
        return [
            f"WARNING: tests marked {name!r} took {self._used_s[name]:.0f} s, over their budget of {budget_s:.0f} s"
            for name, budget_s in BUDGETS_S.items()
            if self._used_s[name] > budget_s
        ]

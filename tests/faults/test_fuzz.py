"""Whatever the API is sent by its own document, it answers as that says, and never with a fault of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.fuzzing import Effort, Fuzzed, fuzz
from tests.faults.oracle import Case, judge

pytestmark = [pytest.mark.faults, pytest.mark.timeout(480)]

EFFORT = Effort(seed=1, max_examples=15, limit_s=420)


def enough(done: Fuzzed, **floors: int) -> bool:
    """Each phase sent so many cases at least, about half of what it does."""
    return all(done.phases.get(phase, 0) >= floor for phase, floor in floors.items())


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_every_answer_is_as_the_openapi_document_says(settings: Settings, tmp_path: Path) -> None:
    done = fuzz(settings, tmp_path / "events.ndjson", EFFORT)
    assert done.is_fine, done.told
    assert not [status for status in done.statuses if status.startswith("5")], done.statuses
    assert enough(done, examples=25, coverage=3000, fuzzing=500, stateful=200), done.phases
    for commands in ("POST /jobs/{job_id}/", "POST /sweeps/{sweep_id}/", "POST /schedules/{schedule_id}/"):
        assert len([call for call in done.walked if call.startswith(commands)]) >= 2, done.walked
    assert {"200", "201", "204", "404", "409", "412", "422"} <= set(done.statuses), "it never came past the checks"
    assert_nothing_found(judge(Case(evidence=gather(settings), deleted=done.deleted)))


def test_without_a_token_nothing_is_told_and_nothing_is_stored(settings: Settings, tmp_path: Path) -> None:
    done = fuzz(settings, tmp_path / "events.ndjson", EFFORT, has_token=False)
    assert done.is_fine, done.told
    assert set(done.statuses) <= {"401", "403", "404", "405"}, done.statuses
    assert enough(done, coverage=1000, fuzzing=300), done.phases
    assert gather(settings).jobs == {}

"""The disk under the checkpoints of a job that trains fills up, and has room again: the job goes on, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gated import Gated
from tests.cluster.serving import Serving, whole_service
from tests.faults.small_disk import fill, small_disk
from tests.waiting import wait_for

__all__ = ["small_disk"]

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.timeout(200)]


@pytest.fixture
def cramped(tmp_path: Path, small_disk: Path) -> Iterator[Serving]:
    """A service whose storage lies on the small disk, and nothing else of it."""
    settings = {"storage": str(small_disk / "storage"), "gather_s": 60}
    with whole_service(tmp_path / "home", settings=settings) as started:
        yield started


def saved(job: Gated) -> list[int]:
    """The steps of its registered checkpoints."""
    with job.served.client() as client:
        return [found["step"] for found in client.get(f"/jobs/{job.id}/checkpoints")["checkpoints"]]


def failures(job: Gated) -> list[dict[str, Any]]:
    """Rows of its timeline that tell of a checkpoint which was not written."""
    return [row for row in job.timeline() if row["kind"] == "checkpoint" and row["after"].get("failed")]


def test_a_job_whose_checkpoints_find_no_room_goes_on_and_saves_again_when_there_is(
    cramped: Serving, small_disk: Path, tmp_path: Path
) -> None:
    ballast = small_disk / "ballast"
    job = Gated(cramped, tmp_path, config={"gates": [6, 13, 19]})
    try:
        pids = job.wait_at(6, 2)
        wait_for("the first checkpoint", lambda: saved(job) == [5])
        fill(ballast)
        job.open(6)
        assert set(job.wait_at(13, 2)) == set(pids)
        wait_for("the row", lambda: failures(job))
        assert saved(job) == [5], "what was there before stays"
        ballast.unlink()
        job.open(13)
        assert set(job.wait_at(19, 2)) == set(pids)
        wait_for("a checkpoint", lambda: 15 in saved(job))
        job.open(19)
        done = job.wait_done()
    finally:
        job.end()
    (failed,) = failures(job)
    assert failed["step"] == 10
    assert "No space left on device" in failed["reason"]
    assert "free space" in failed["reason"]
    assert (done["attempt"], saved(job)[-1]) == (1, job.steps)
    assert not {"worker_lost", "restore", "failure"} & set(job.kinds())
    job.assert_nothing_broken()

"""The demonstration as a person calls it, on jobs of less than a minute."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.conclusion import TOLD_KINDS
from service.cli.connection import connect
from service.settings import environment
from service.supervise.home import Home
from service.supervise.processes import belonging_to
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import CONCERTINA, ROOT, Serving, end_everything
from tests.cluster.strays import nothing_left_behind
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

LIMIT_S = 400
FIRST_POINT_LIMIT_S = 60.0
"""What was promised to whoever looks for the first time; several times what it takes."""
STAYS = "the page stays up"
FIRST_POINT = re.compile(r"first point on the chart ([\d.]+) s after the command")
ROW = re.compile(r"([\d,]+)  +(\S.*?)  +(\d.*?)  +(\d+)")
"""Step, what, seconds without a step, steps lost."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    with nothing_left_behind():
        yield folder
        end_everything(folder)
    assert not folder.exists()


@pytest.mark.timeout(2 * LIMIT_S)
def test_the_demonstration_resizes_loses_a_worker_counts_every_sample_and_leaves_its_page_up(home: Path) -> None:
    told = home.with_name("told.txt")
    with told.open("wb") as stream:
        first = subprocess.Popen(demo(home, 30), cwd=ROOT, env=environment(), stdout=stream, stderr=subprocess.STDOUT)
    try:
        wait_for("the end of the scenario", lambda: STAYS in told.read_text() or first.poll() is not None, LIMIT_S)
        assert first.poll() is None, told.read_text()
        found = re.search(rf"{STAYS}: (http\S+);", told.read_text())
        assert found
        with connect(found[1], home=home) as client:
            (job,) = client.get("/jobs")["jobs"]
            timeline = client.get(f"/jobs/{job['id']}/timeline")["timeline"]
        assert_all_was_told(told.read_text(), job, timeline)
        assert_another_uses_the_service(home, found[1])
        assert_service_at_rest(Serving(first, home, told))
        first.send_signal(signal.SIGINT)
        assert first.wait(LIMIT_S) == 0, told.read_text()
    finally:
        first.kill()
    temp_dir = Home(home).remembered_temp_dir()
    assert temp_dir is not None
    assert belonging_to(temp_dir) == []


def demo(home: Path, seconds: int, *flags: str) -> list[str]:
    at = ("--home", str(home), "--port", "0", "--num-cpus", "3", "--seconds", str(seconds))
    return [*CONCERTINA, "demo", *at, *flags]


def assert_all_was_told(told: str, job: dict[str, Any], timeline: list[dict[str, Any]]) -> None:
    assert (job["state"], job["progress"]["step"]) == ("SUCCEEDED", job["spec"]["steps"])
    assert job["progress"]["eval"]["accuracy"] >= 0.97
    assert_figures_agree(told, timeline)
    first = FIRST_POINT.search(told)
    assert first, told
    assert float(first[1]) <= FIRST_POINT_LIMIT_S
    for sentence in ("Grew from 1 to 2 workers", "was lost", "went on with 1 of 2", "Shrank from 2 to 1"):
        assert sentence in told, told
    assert f"{job['progress']['samples']:,} samples in {job['spec']['steps']:,} steps, each counted once" in told


def assert_another_uses_the_service(home: Path, url: str) -> None:
    """A second demonstration of the same home, which ends after its job and answers as a document."""
    done = subprocess.run(
        demo(home, 30, "--exit", "-o", "json"),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"runs already at {url}" in done.stderr
    document = json.loads(done.stdout)
    assert document["is_right"]
    assert document["job"]["state"] == "SUCCEEDED"
    assert 0 < document["first_point_s"] <= FIRST_POINT_LIMIT_S


def assert_figures_agree(told: str, timeline: list[dict[str, Any]]) -> None:
    """The table at the end is the timeline's, and no change cost a step."""
    rows = [row for row in timeline if row["kind"] in TOLD_KINDS]
    printed = [match.groups() for line in told.splitlines() if (match := ROW.fullmatch(line.strip()))]
    assert [int(step.replace(",", "")) for step, *_ in printed] == [row["step"] for row in rows], told
    assert [lost for *_, lost in printed] == ["0"] * len(rows)

"""The demonstration as a person calls it, on a job of less than a minute."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.conclusion import TOLD_KINDS
from service.settings import environment
from service.supervise.home import Home
from service.supervise.processes import belonging_to
from tests.cluster.serving import CONCERTINA, ROOT, end_everything
from tests.cluster.strays import nothing_left_behind

pytestmark = pytest.mark.cluster

LIMIT_S = 300
FIRST_POINT_LIMIT_S = 60.0
"""What was promised to whoever looks for the first time; several times what it takes."""
ROW = re.compile(r"([\d,]+)  +(\S.*?)  +(\d.*?)  +(\d+)")
"""Step, what, seconds without a step, steps lost."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    with nothing_left_behind():
        yield folder
        end_everything(folder)
    assert not folder.exists()


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_demonstration_resizes_loses_a_worker_and_counts_every_sample(home: Path) -> None:
    flags = ("--exit", "--home", str(home), "--port", "0", "--num-cpus", "3", "--seconds", "50", "-o", "json")
    done = subprocess.run(
        [*CONCERTINA, "demo", *flags],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    told = done.stderr
    assert done.returncode == 0, told
    document = json.loads(done.stdout)
    job = document["job"]
    assert document["is_right"]
    assert 0 < document["first_point_s"] <= FIRST_POINT_LIMIT_S
    assert (job["state"], job["progress"]["step"]) == ("SUCCEEDED", job["spec"]["steps"])
    assert job["progress"]["eval"]["accuracy"] >= 0.97
    assert_figures_agree(told, document["timeline"])
    for sentence in ("Grew from 1 to 2 workers", "was lost", "went on with 1 of 2", "Shrank from 2 to 1"):
        assert sentence in told, told
    assert f"{job['progress']['samples']:,} samples in {job['spec']['steps']:,} steps, each counted once" in told
    temp_dir = Home(home).remembered_temp_dir()
    assert temp_dir is not None
    assert belonging_to(temp_dir) == []


def assert_figures_agree(told: str, timeline: list[dict[str, Any]]) -> None:
    """The table at the end is the timeline's, and no change cost a step."""
    rows = [row for row in timeline if row["kind"] in TOLD_KINDS]
    printed = [match.groups() for line in told.splitlines() if (match := ROW.fullmatch(line.strip()))]
    assert [int(step.replace(",", "")) for step, *_ in printed] == [row["step"] for row in rows], told
    assert [lost for *_, lost in printed] == ["0"] * len(rows)

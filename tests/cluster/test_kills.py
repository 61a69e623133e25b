"""The service is killed at random moments on a real Ray; many more rounds of the same are in ``tests/benchmarks``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import environment
from tests.cluster.serving import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(320)]


def test_ten_kills_under_mixed_load_on_a_real_ray_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    output = tmp_path / "kills.jsonl"
    # A process of its own: Ray's environment has to be set before Ray is imported.
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.kills", "--rounds", "10", "--output", str(output)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = json.loads(output.read_text())
    assert line["rounds"] == 10
    assert line["kills"]["serve"] > 0
    assert line["accepted"] > 0
    assert line["states"]["SUCCEEDED"] > 0
    assert line["steps"] > 0

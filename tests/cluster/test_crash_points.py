"""The reconciler dies within calls on a real Ray; what it left half done is taken up or taken away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import environment
from tests.benchmarks.own_ray import own_ray
from tests.cluster.serving import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(560)]

NUM_CPUS = 3


@pytest.mark.parametrize("within", ["calls", "effects"])
def test_a_reconciler_that_dies_within_a_call_on_ray_loses_nothing_and_leaves_nothing(
    tmp_path: Path, within: str
) -> None:
    with own_ray(tmp_path, NUM_CPUS) as head:
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.ray_points", str(tmp_path), within],
            cwd=ROOT,
            env=environment() | head.variables,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr

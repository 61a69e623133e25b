"""Verdicts on changes, held against what workers computed and steps took: a machine may be busy with something else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from service.client import Client
from tests.cluster.passes import assert_applied

PAYS = 1.5
"""So many times as fast at least are steps after a change in these tests, where little else keeps the machine busy."""

NUM_BEFORE = 64
"""Steps before a change, of which its worth is measured by the newest."""


def assert_verdict_fits(
    client: Client, folder: Path, job_id: str, change: Mapping[str, Any], verdict: Mapping[str, Any], since: int = 1
) -> None:
    """A change was carried out, and where steps were much faster until its verdict, it was found so, and kept.

    Workers have told of their passes in ``folder``. Before the change the job trained as it did from the step
    ``since`` on.
    """
    assert_applied(folder, change, verdict)
    points = client.get(f"/jobs/{job_id}/metrics", keys="samples_per_s", max_points=10_000)["points"]

    def speed(first: int, last: int) -> float:
        return median(p["values"]["samples_per_s"] for p in points if first < p["step"] <= last)

    at, told = change["step"], verdict["after"]
    gain = speed(at, verdict["step"]) / speed(max(since, at - NUM_BEFORE), at)
    assert (told["is_kept"] and told["gain"] > 1.2) or gain < PAYS, (verdict, gain)

"""Forward passes as the processes that compute them tell of them, whatever the service says that they do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from statistics import median_low
from typing import Any

TELL = """
import os
import time
from pathlib import Path


def tell(config, num_samples):
    with (Path(config["folder"]) / f"passes-{os.getpid()}").open("a") as told:
        told.write(f"{time.time()} {num_samples}\\n")


"""
"""The head of a task's code: its loss tells of each pass, which is a whole part where `micro_size` is the batch."""


def assert_applied(folder: Path, change: Mapping[str, Any], verdict: Mapping[str, Any]) -> None:
    """Between the rows of a change and of its verdict the workers did compute what the change says."""
    begin, end = (datetime.fromisoformat(row["time"]).timestamp() for row in (change, verdict))
    # All have agreed on it long before the half of the time in which it is measured is over.
    parts = _parts(folder, (begin + end) / 2, end)
    found = {"parts": parts, "global_batch": sum(parts), "workers": len(parts)}
    said = {key: sorted(value) if key == "parts" else value for key, value in change["after"].items() if key in found}
    assert said, f"a row that names no change of the batch: {change}"
    assert {key: found[key] for key in said} == said, (change, parts)


def _parts(folder: Path, begin: float, end: float) -> list[int]:
    """The usual samples of a pass, of each process that computed some in that time, ascending."""
    told = [[line.split() for line in file.read_text().splitlines()] for file in folder.glob("passes-*")]
    sizes = ([int(num_samples) for at, num_samples in passes if begin <= float(at) < end] for passes in told)
    return sorted(median_low(each) for each in sizes if each)

"""The results of the recovery measurement: read back, so that a later call goes on, and put into words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from tests.benchmarks.figures import in_words, ratio_line
from tests.benchmarks.recovery_changes import ACTS, Change

KIND = "recovery.change"
STUCK = "recovery.stuck"
"""A side did not come back to training within the bound, or ended."""

OURS = "concertina"
WANTED_TIMES = 30.0


def earlier(file: Path | None) -> list[Change]:
    """The changes that a file of results holds already; none where there is no file."""
    if file is None or not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [Change(**{key: line[key] for key in Change.__slots__}) for line in lines if line["kind"] == KIND]


def num_measured(changes: Iterable[Change], what: str, side: str) -> int:
    """How often a change was made to a side."""
    return sum(change.what == what and change.side == side for change in changes)


def in_lines(changes: Sequence[Change]) -> list[str]:
    """Medians and spread of each change a side, and how many times faster ours was than each other."""
    lines = []
    for what in (what for what in ACTS if any(change.what == what for change in changes)):
        of_sides = _by_side([change for change in changes if change.what == what])
        lines += [f"{what}: to the first step of the new group, the longest gap between anyone's steps, and steps lost"]
        for side, made in of_sides.items():
            lines.append(f"  {side:10s} {in_words([change.seconds for change in made], 's')}")
            lines.append(f"  {'':10s} gap {in_words([change.gap_s for change in made], 's')}")
            lines.append(f"  {'':10s} lost {in_words([change.lost for change in made], 'steps')}")
        lines += _ratios(of_sides)
    loads = [change.load_1min for change in changes]
    return [*lines, f"load average after each: {in_words(loads, '')}"]


def _by_side(changes: Iterable[Change]) -> dict[str, list[Change]]:
    ordered = sorted(changes, key=lambda change: change.side)
    return {side: list(made) for side, made in groupby(ordered, key=lambda change: change.side)}


def _ratios(of_sides: Mapping[str, list[Change]]) -> list[str]:
    ours = of_sides.get(OURS, [])
    lines = []
    for side, theirs in of_sides.items():
        for name in ("seconds", "gap_s") if ours and side != OURS else ():
            ratio = ratio_line(name, [getattr(c, name) for c in ours], [getattr(c, name) for c in theirs], WANTED_TIMES)
            lines.append(f"  against {side}, {ratio}")
    return lines

"""What the reconciler begins a tick with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.records import JobRow, NodeMark
from service.sweep_records import SweepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """``jobs`` as of ``live_jobs``, ``marks`` by node id as of ``node_marks``, ``sweeps`` as of ``live_sweeps``.

    ``promoting`` are the ids of sweeps whose winner is to be promoted, or of whose promotion something goes on.
    """

    jobs: Sequence[JobRow]
    marks: Mapping[str, NodeMark]
    sweeps: Sequence[SweepRow]
    promoting: Sequence[str]

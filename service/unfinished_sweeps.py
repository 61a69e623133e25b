"""The best of a sweep that a limit or a person ended before any trial was complete. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.sweep_records import SweepState, TrialRow
from tuning.pruning import rungs_for
from tuning.spec import SweepSpec
from tuning.unfinished import furthest_best

TELL_UNFINISHED = frozenset({SweepState.SUCCEEDED, SweepState.STOPPED})
"""Sweeps that are over with what they found. While one goes on, what leads at a rung may be caught up with."""


def best_of_unfinished(spec: SweepSpec, trials: Sequence[TrialRow], samples_per_epoch: int | None) -> TrialRow | None:
    """The trial that was best at the furthest rung, with its value there; None where none has reported anything."""
    rungs = rungs_for(spec, samples_per_epoch)
    best = furthest_best([trial.for_search() for trial in trials], rungs, spec.mode)
    if best is None:
        return None
    return next(replace(trial, value=best.value) for trial in trials if trial.number == best.number)

"""What a sweep found, as users see it: its best over time, what mattered, where trials ended. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from service.cost import Prices, amount, is_upper_bound
from service.documents import Document
from service.sweep_documents import best_document
from service.sweep_records import SweepView, TrialRow, Wish
from service.unfinished_sweeps import TELL_UNFINISHED, best_of_unfinished
from tuning.alike import alike
from tuning.paths import applied
from tuning.pruning import rungs_for
from tuning.report import BestPoint, best_so_far, lr_batch_map, schedule_of
from tuning.spec import SweepSpec
from tuning.trial import TrialState
from tuning.verdicts import score
from workers.spec_parts import Resources

CAUTION = (
    "The best value of a sweep flatters: it is the luckiest of {number} trials, not what its settings reach on "
    "average. Train them again with other seeds before you count on it."
)


def report_document(view: SweepView, prices: Prices) -> Document:
    """Everything that a sweep found so far; ``worker_s`` and ``samples`` add up over the trials that have ended."""
    sweep, spec = view.sweep, view.sweep.spec
    ended = in_order_of_end(view.trials)
    points = best_so_far([trial.for_search() for trial in ended], spec.mode)
    amounts = _amounts(spec, ended, prices)
    importance = {} if spec.population is not None else sweep.importance
    open_amounts = _amounts(spec, [trial for trial in view.trials if not trial.is_ended], prices)
    return {
        "sweep_id": sweep.id,
        "name": sweep.name,
        "state": sweep.state,
        "metric": spec.metric,
        "mode": spec.mode,
        "best": _best(points, view),
        "caution": caution(ended),
        "schedule": _schedule(points, view.trials),
        "best_so_far": [
            {"trial": p.number, "best": p.best, "samples": p.samples, "worker_s": round(p.worker_s, 3)} for p in points
        ],
        "improvements": _improvements(points, amounts),
        "importance": dict(sorted(importance.items(), key=lambda item: -item[1])),
        "importance_at": _weighed_at(view, spec),
        "lr_batch": [
            {"trial": p.number, "lr": p.lr, "global_batch": p.global_batch, "value": p.value, "state": p.state}
            for p in lr_batch_map(spec, [trial.for_search() for trial in ended])
        ],
        "rungs": _rungs(view, spec),
        "cost": {
            "worker_s": round(sum(trial.seconds for trial in view.trials), 3),
            "amount": _sum([*amounts, *open_amounts]) if view.trials else amount(0.0, Resources(), prices),
            "currency": prices.currency,
            "is_upper_bound": any(is_upper_bound(_resources(spec, trial), prices) for trial in view.trials),
        },
    }


def caution(ended: Sequence[TrialRow]) -> str | None:
    """Why the best value is not to be expected again; None while there is nothing to be chosen from.

    Those that were pruned on the way have lost to it as well.
    """
    number = sum(trial.state is TrialState.COMPLETE or _has_lost(trial) for trial in ended)
    is_found = any(trial.state is TrialState.COMPLETE for trial in ended)
    return CAUTION.format(number=number) if is_found and number > 1 else None


def _has_lost(trial: TrialRow) -> bool:
    return trial.state is TrialState.PRUNED and bool(trial.reports)


def _weighed_at(view: SweepView, spec: SweepSpec) -> int | None:
    """The samples after which trials were compared to find out what mattered; None for at their ends."""
    if not view.sweep.importance:
        return None
    return alike([trial.for_search() for trial in view.trials], rungs_for(spec, view.samples_per_epoch)).samples


def in_order_of_end(trials: Iterable[TrialRow]) -> list[TrialRow]:
    """The trials that have ended, the first to do so first."""
    ended = [trial for trial in trials if trial.is_ended]
    return sorted(ended, key=lambda trial: (trial.finished_at or math.inf, trial.number))


def _best(points: Sequence[BestPoint], view: SweepView) -> Document | None:
    found_in = points[-1].best_number if points else None
    best = next((trial for trial in view.trials if trial.number == found_in), None)
    if best is None and view.sweep.state in TELL_UNFINISHED:
        best = best_of_unfinished(view.sweep.spec, view.trials, view.samples_per_epoch)
    return None if best is None else best_document(best)


def _schedule(points: Sequence[BestPoint], trials: Sequence[TrialRow]) -> list[Document]:
    """What the best trial's state was trained with, sample by sample; empty where nothing was changed on the way."""
    found_in = points[-1].best_number if points else None
    stages = [] if found_in is None else schedule_of({trial.number: trial.for_search() for trial in trials}, found_in)
    told = [{"trial": s.number, "samples": s.samples, "params": dict(s.params)} for s in stages]
    return told if len(told) > 1 else []


def _amounts(spec: SweepSpec, trials: Sequence[TrialRow], prices: Prices) -> list[float | None]:
    """What each cost; a sweep may search what its workers get."""
    return [amount(trial.seconds, _resources(spec, trial), prices) for trial in trials]


def _resources(spec: SweepSpec, trial: TrialRow) -> Resources:
    return Resources.model_validate(applied(spec.job, trial.params)["resources"])


def _sum(amounts: Sequence[float | None]) -> float | None:
    known = [each for each in amounts if each is not None]
    return round(sum(known), 6) if known and len(known) == len(amounts) else None


def _improvements(points: Sequence[BestPoint], amounts: Sequence[float | None]) -> list[Document]:
    """Each with what was paid since the one before, for all trials that ended meanwhile; see ``BestPoint``."""
    found, paid_upto = [], 0
    for index, point in enumerate(points):
        if point.is_improvement:
            found.append(
                {
                    "trial": point.number,
                    "value": point.best,
                    "gain": point.gain,
                    "worker_s": round(point.cost_s or 0.0, 3),
                    "amount": _sum(amounts[paid_upto : index + 1]),
                }
            )
            paid_upto = index + 1
    return found


def _rungs(view: SweepView, spec: SweepSpec) -> list[Document]:
    """Where trials are compared: who came there, who waits or was ended there. Empty while that is not known."""
    told = []
    for rung, following in pairwise((*rungs_for(spec, view.samples_per_epoch), math.inf)):
        values = [next(r.value for r in t.reports if r.samples >= rung) for t in view.trials if t.samples >= rung]
        here = [trial for trial in view.trials if rung <= trial.samples < following]
        told.append(
            {
                "samples": rung,
                "reached": len(values),
                "waiting": sum(not trial.is_ended and trial.wish is Wish.HOLD for trial in here),
                "pruned": sum(trial.state is TrialState.PRUNED for trial in here),
                "best": max(filter(math.isfinite, values), key=lambda value: score(value, spec.mode), default=None),
            }
        )
    return told

"""Which parameters of a search mattered."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import optuna

from tuning.alike import LEAST_COMPARED
from tuning.optuna_trials import optuna_trial, study_with
from tuning.space import Space
from tuning.spec_parts import Mode
from tuning.trial import Trial, TrialState


def importance(trials: Sequence[Trial], space: Space, mode: Mode) -> dict[str, float]:
    """Share of each parameter in what makes one of these trials one of the better; the shares sum to 1.

    PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255): some 10 ms for 100 trials. They are to have ended alike (see
    ``tuning.alike``). Empty where they are too few or all are worth the same; parameters with conditions are left out,
    as not every trial has them.
    """
    complete = [t for t in trials if t.state is TrialState.COMPLETE and math.isfinite(t.value or math.nan)]
    if len(complete) < LEAST_COMPARED or len({t.value for t in complete}) == 1:
        return {}
    shared = [p.path for p in space.parameters if not p.when and p.distribution.count() != 1]
    with _without_forests():
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    with warnings.catch_warnings():
        # That the evaluator may change is pinned by Optuna's version range.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = study_with([optuna_trial(trial, space) for trial in complete], mode)
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=shared)
    return {path: float(share) for path, share in shares.items() if math.isfinite(share)}


@contextmanager
def _without_forests() -> Iterator[None]:
    """Let Optuna's importances load without scikit-learn, where that is not loaded.

    It takes a second of a processor, for which trials would wait, and only random forests need it.
    """
    if "sklearn" in sys.modules:
        yield
        return
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # what Python has for "not there"
    try:
        yield
    finally:
        del sys.modules["sklearn"]

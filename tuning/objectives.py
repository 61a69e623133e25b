"""Which telemetry keys a sweep can be over: those that tell what a trial is worth. Pure."""

from __future__ import annotations

import difflib

OBJECTIVES = frozenset({"loss", "samples_per_s", "memory_bytes", "gpu_utilisation", "noise_scale"})
"""Besides what the user's code names. ``noise_scale`` is refused where a checkpoint's metric is, in its own words."""

_GIVEN = frozenset({"lr", "global_batch", "micro_batch", "workers", "loss_scale", "round_steps"})
_NAME_A_RESULT = "name eval.NAME for what `evaluate` returns, user.NAME for what `loss` returns besides, loss"


def no_such_metric(metric: str) -> str:
    """What to tell of a metric under which no job reports anything."""
    name = metric.rpartition(".")[2] or "NAME"
    known = sorted(OBJECTIVES - {"noise_scale"})
    near = difflib.get_close_matches(metric, known, n=1)
    hint = f"did you mean {near[0]!r}? Else write" if near else "write"
    return (
        f"{metric!r:.80} is nothing that a job reports; {hint} 'eval.{name:.60}' for what `evaluate` returns, "
        f"'user.{name:.60}' for what `loss` returns besides, or one of {', '.join(known)}"
    )


def objective_fault(metric: str) -> str:
    """Why a key under which jobs tell something is no metric of a sweep, with what to name; empty where it is one."""
    if metric in OBJECTIVES or "." in metric:
        return ""
    if metric in _GIVEN:
        return f"{metric!r} is what a job is given, no result of it; {_NAME_A_RESULT} or samples_per_s"
    why = "another batch or number of workers makes it another thing"
    return f"{metric!r} is of one round, and {why}; {_NAME_A_RESULT}, or samples_per_s for how fast it trains"

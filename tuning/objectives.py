"""Which telemetry keys a sweep can be over: those that tell what a trial is worth. Pure."""

from __future__ import annotations

from workers.telemetry_keys import no_such_key

OBJECTIVES = frozenset({"loss", "samples_per_s", "memory_bytes", "gpu_utilisation", "noise_scale"})
"""Besides what the user's code names. ``noise_scale`` is refused where a checkpoint's metric is, in its own words."""

_GIVEN = frozenset({"lr", "global_batch", "micro_batch", "workers", "loss_scale", "round_steps"})
_NAME_A_RESULT = "name eval.NAME for what `evaluate` returns, user.NAME for what `loss` returns besides, loss"


def no_such_metric(metric: str) -> str:
    """What to tell of a metric under which no job reports anything."""
    return no_such_key(metric, OBJECTIVES - {"noise_scale"})


def objective_fault(metric: str) -> str:
    """Why a key under which jobs tell something is no metric of a sweep, with what to name; empty where it is one."""
    if metric in OBJECTIVES or "." in metric:
        return ""
    if metric in _GIVEN:
        return f"{metric!r} is what a job is given, no result of it; {_NAME_A_RESULT} or samples_per_s"
    why = "another batch or number of workers makes it another thing"
    return f"{metric!r} is of one round, and {why}; {_NAME_A_RESULT}, or samples_per_s for how fast it trains"

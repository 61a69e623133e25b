"""Bodies that calls accept as they stand, for whoever reads ``/openapi.json``.

What they refer to is the configuration ``digits``, which is among them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Examples: TypeAlias = dict[str, dict[str, Any]]

_DIGITS: dict[str, Any] = {
    "entrypoint": "workers.recipes.digits:build",
    "config": {"hidden": 128},
    "epochs": 15,
    "workers": {"min": 1, "max": 2},
}
_SPACE: dict[str, Any] = {
    "optimizer.lr": {"log_uniform": [1e-4, 1e-1]},
    "batch.global_size": {"choice": [32, 64, 128, 256]},
    "config.hidden": {"int": [32, 512], "log": True},
}
_SEARCH: dict[str, Any] = {"space": _SPACE, "metric": "eval.accuracy", "mode": "max"}


def _example(summary: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "value": value}


JOB_EXAMPLES: Examples = {
    "short": _example(
        "The least that a job needs",
        {"name": "digits", "entrypoint": "workers.recipes.digits:build", "steps": 500},
    ),
    "elastic": _example(
        "On 1 to 4 workers, with its best checkpoint kept",
        {
            "name": "chargpt",
            "entrypoint": "workers.recipes.chargpt:build",
            "config": {"dim": 128, "layers": 4, "heads": 4},
            "samples": 100_000,
            "workers": {"min": 1, "max": 4},
            "resources": {"cpus": 1, "memory_bytes": 2 * 2**30},
            "batch": {"global_size": 64, "lr_rule": "sqrt"},
            "optimizer": {"lr": 1e-3, "base_batch": 64, "clip_norm": 1.0},
            "lr_schedule": {"warmup_fraction": 0.05, "decay": "cosine"},
            "checkpoint": {"every_steps": 100, "keep": 2, "metric": "eval.loss", "mode": "min"},
            "labels": {"team": "language"},
        },
    ),
}

CONFIGURATION_EXAMPLES: Examples = {"digits": _example("A job spec without name", _DIGITS)}

SWEEP_EXAMPLES: Examples = {
    "search": _example(
        "Learning rate, batch and width at once; trials that fall behind end early",
        {"name": "digits-lr", "job": _DIGITS, **_SEARCH, "pruner": {"asha": {"min_samples": 1500, "reduction": 3}}},
    ),
    "promoting": _example(
        "From a configuration, which the winner may replace",
        {
            "name": "digits-better",
            "job": {"from": "digits"},
            **_SEARCH,
            "trials": 16,
            "limits": {"time_s": 3600},
            "promote": "digits",
        },
    ),
    "population": _example(
        "Learning rates that change while their trials run",
        {
            "name": "digits-pbt",
            "job": _DIGITS,
            "space": {"optimizer.lr": _SPACE["optimizer.lr"]},
            "metric": "eval.accuracy",
            "pruner": "none",
            "population": "pbt",
            "trials": 4,
        },
    ),
}

SCHEDULE_EXAMPLES: Examples = {
    "job": _example(
        "A job on each working day at two in the night",
        {"name": "nightly", "cron": "0 2 * * 1-5", "time_zone": "Europe/Berlin", "target": {"job": _DIGITS}},
    ),
    "sweep": _example(
        "A sweep on each Sunday, in place of one that still runs",
        {
            "name": "weekly-lr",
            "cron": "30 4 * * SUN",
            "time_zone": "UTC",
            "target": {"sweep": {"job": _DIGITS, **_SEARCH, "trials": 16}},
            "overlap": "cancel_other",
            "catchup_window_s": 7200,
            "jitter_s": 300,
        },
    ),
}

SCALE_EXAMPLES: Examples = {
    "pin": _example("Three workers, until a range or auto frees it", {"workers": 3, "reason": "the night is free"}),
    "range": _example("A range", {"workers": {"min": 2, "max": 4}}),
    "free": _example("As the service thinks best within the range of the spec", {"workers": "auto"}),
}

EXTEND_EXAMPLES: Examples = {"more": _example("So many trials in all", {"trials": 64})}

PROMOTE_EXAMPLES: Examples = {"digits": _example("Against this configuration", {"configuration": "digits"})}

REASON_EXAMPLES: Examples = {"why": _example("What others are told of it", {"reason": "a new disk"})}

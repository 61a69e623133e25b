"""Sweep specs for tests: a good one, and what is refused of a changed one."""

from __future__ import annotations

from typing import Any

import pytest

from tuning.parsing import parse_sweep_spec
from tuning.spec import SweepSpec
from tuning.spec_problems import Known
from workers.errors import SpecError

JOB: dict[str, Any] = {"entrypoint": "workers.recipes.digits:build", "epochs": 15, "workers": {"min": 1, "max": 2}}
BASE: dict[str, Any] = {
    "name": "digits-lr",
    "job": JOB,
    "space": {
        "optimizer.lr": {"log_uniform": [1e-4, 1e-1]},
        "batch.global_size": {"choice": [32, 64, 128, 256]},
        "config.hidden": {"int": [32, 512], "log": True},
        "config.regularise": {"choice": [True, False]},
        "config.dropout": {"uniform": [0.0, 0.5], "when": {"config.regularise": True}},
    },
    "metric": "eval.accuracy",
}


def accepted(known: Known | None = None, **changed: Any) -> SweepSpec:
    return parse_sweep_spec({**BASE, **changed}, known)


def refused(known: Known | None = None, code: str = "INVALID", **changed: Any) -> dict[str, str]:
    """Pointer -> detail of each problem of the base document with some keys changed."""
    with pytest.raises(SpecError) as caught:
        accepted(known, **changed)
    assert caught.value.code == code
    return {p.pointer: p.detail for p in caught.value.problems}

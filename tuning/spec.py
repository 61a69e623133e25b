"""The sweep spec: what a user submits to search, with every default; and the job of each trial. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue, field_validator

from tuning.paths import applied
from tuning.spec_parts import (
    MAX_PARALLEL,
    MAX_TRIALS,
    MAX_WARM_STARTS,
    DistributionSpec,
    Mode,
    PopulationName,
    PrunerName,
    PrunerSpec,
    SamplerName,
    SweepLimits,
)
from tuning.values import Params
from workers.spec import JobSpec, parse_job_spec
from workers.spec_parts import NAME_PATTERN, WHOLE, SpecPart


class SweepSpec(SpecPart):
    """A sweep. ``job`` is a job spec without name, with its defaults and without what is searched always."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    job: dict[str, JsonValue]
    space: dict[str, DistributionSpec]
    metric: Annotated[str, Field(min_length=1, max_length=200)]
    mode: Mode = "max"
    sampler: SamplerName = "tpe"
    pruner: PrunerName | PrunerSpec = "asha"
    population: PopulationName | None = None
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), WHOLE] = 32
    parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL), WHOLE] = 4
    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] = 0
    limits: SweepLimits = SweepLimits()
    warm_start: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100)]],
        Field(max_length=MAX_WARM_STARTS, default_factory=list),
    ]
    promote: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None

    @field_validator("pruner")
    @classmethod
    def _one_pruner(cls, value: PrunerName | PrunerSpec) -> PrunerName | PrunerSpec:
        if isinstance(value, PrunerSpec):
            given = [name for name in ("asha", "hyperband", "median") if getattr(value, name) is not None]
            if len(given) != 1:
                seen = " and ".join(given) or "none of them"
                raise ValueError(f"exactly one of asha, hyperband and median is a pruner; given: {seen}")
        return value


def trial_spec(spec: SweepSpec, number: int, params: Params, first_rung: int | None = None) -> JobSpec:
    """The job of one trial; never refused for a point of the space.

    With ``first_rung`` (in samples; the pruner's, where there is one) it evaluates at least that often. An
    interval counted in steps would let trials of a large batch pass rungs, or end, before they report anything.
    """
    job = parse_job_spec({**applied(spec.job, params), "name": trial_name(spec.name, number)})
    if first_rung is None or not spec.metric.startswith("eval.") or "eval_every_steps" in spec.space:
        return job
    every = max(1, min(job.eval_every_steps, first_rung // job.batch.global_size))
    return job.model_copy(update={"eval_every_steps": every})


def trial_name(sweep: str, number: int) -> str:
    """A name for the job of a trial, as short as a job's name must be."""
    ending = f"-{number}"
    return sweep[: 63 - len(ending)].rstrip("-") + ending

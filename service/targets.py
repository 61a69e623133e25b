"""What a schedule starts: the kinds there are, and how the spec of each is read. Pure.

A further kind is plugged in here (``read_target``) and in ``service/store/children.py``, nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.configuration_records import ConfigurationRow, Origin
from service.labels import parse_given_job
from service.sweep_specs import read_sweep_spec, sample_job
from tuning.parsing import wanted_configuration
from tuning.spec import SweepSpec
from tuning.spec_parts import DistributionSpec
from workers.errors import FieldProblem, SpecError
from workers.spec import JobSpec


class Kind(StrEnum):
    """What a child is."""

    JOB = "job"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class Target:
    """What is started at each nominal time; ``origin`` is where a sweep's job was taken from.

    ``space`` is that sweep's as it was given: which conditions the configuration meets may change with it.
    """

    kind: Kind
    spec: JobSpec | SweepSpec
    origin: Origin | None = None
    space: Mapping[str, Any] | None = None

    @property
    def job(self) -> JobSpec:
        """What is started, or for a sweep the job of one of its points."""
        return self.spec if isinstance(self.spec, JobSpec) else sample_job(self.spec)

    @property
    def document(self) -> dict[str, Any]:
        """As in a schedule's spec, with every default; a job from a configuration is looked up at each nominal time."""
        spec = json.loads(self.spec.model_dump_json())
        if self.origin is not None:
            spec |= {"job": {"from": self.origin.name}, "space": self.space}
        return {self.kind: spec}


def configuration_of(target: object) -> str | None:
    """The name of the configuration that a target's sweep takes its job from, for the caller to look up."""
    return wanted_configuration(target.get(Kind.SWEEP)) if isinstance(target, Mapping) else None


def read_target(
    document: Mapping[str, Any], name: str, *, has_prices: bool, configuration: ConfigurationRow | None = None
) -> Target:
    """The target of a schedule of that name; a child has it too where the target names none.

    ``has_prices``, ``configuration``: as of ``read_sweep_spec``. Raises SpecError, its pointers from the schedule's
    spec on.
    """
    if len(document) != 1 or (kind := next(iter(document))) not in set(Kind):
        seen = ", ".join(repr(key)[:40] for key in document) or "nothing"
        raise SpecError([FieldProblem("/target", f"must hold one of {', '.join(Kind)} (seen: {seen})")])
    given = document[kind]
    named = {"name": name, **given} if isinstance(given, Mapping) else given
    try:
        if kind == Kind.JOB:
            return Target(Kind.JOB, parse_given_job(named))
        spec = read_sweep_spec(named, has_prices=has_prices, configuration=configuration)
    except SpecError as error:
        problems = [FieldProblem(f"/target/{kind}{p.pointer}", p.detail) for p in error.problems]
        raise SpecError(problems, code=error.code) from None
    if configuration is None:
        return Target(Kind.SWEEP, spec)
    space = {
        path: DistributionSpec.model_validate(each).model_dump(mode="json") for path, each in named["space"].items()
    }
    return Target(Kind.SWEEP, spec, Origin(configuration.name, configuration.version), space)

"""Reading a sweep's spec for this service: what its trials share, and a job that stands for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from service.configuration_records import ConfigurationRow
from service.labels import label_problems
from tuning.parsing import parse_sweep_spec
from tuning.space import space_of
from tuning.space_problems import place
from tuning.spec import SweepSpec, trial_spec
from tuning.spec_problems import Known
from workers.errors import FieldProblem, SpecError
from workers.spec import JobSpec

_SHARED = ("bundle", "init_from.job", "init_from.step")
"""What a sweep holds on to for all its trials, so that none is gone when a trial starts."""

_LABELS = "labels."


def read_sweep_spec(document: object, *, has_prices: bool, configuration: ConfigurationRow | None = None) -> SweepSpec:
    """A sweep spec from parsed YAML or JSON; ``has_prices`` says whether seconds can be turned into money.

    ``configuration`` is the one that ``wanted_configuration`` names, None where there is none.

    Raises SpecError. May take a second for a space of thousands of choices.
    """
    job = None if configuration is None else configuration.document
    spec = parse_sweep_spec(document, Known(configuration=job, has_prices=has_prices))
    told = "is the same for all trials; take it out of the space, and let what varies hang on config"
    problems = [FieldProblem(place(path), f"{path} {told}") for path in _SHARED if path in spec.space]
    labels = spec.job.get("labels")
    problems += label_problems(labels if isinstance(labels, Mapping) else {}, "/job/labels")
    searched = {path.removeprefix(_LABELS): None for path in spec.space if path.startswith(_LABELS)}
    problems += label_problems(searched, f"/space/{_LABELS}", joint="")
    if problems:
        raise SpecError(problems)
    return spec


def sample_job(spec: SweepSpec) -> JobSpec:
    """The job of one corner of the space, which names the same bundle and origin as that of any trial."""
    return trial_spec(spec, 0, next(space_of(spec.space).corners()))

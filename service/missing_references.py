"""What is wrong with a spec that names something that is not there, or does not fit. Pure."""

from __future__ import annotations

from service.store.references import UnknownReferenceError
from service.store.sweeps import OtherMetricError, UnknownConfigurationError, UnknownSweepError
from tuning.spec import SweepSpec
from workers.errors import FieldProblem
from workers.spec import JobSpec

UNKNOWN = (UnknownReferenceError, UnknownSweepError, OtherMetricError, UnknownConfigurationError)


def missing_reference(error: Exception, spec: JobSpec | SweepSpec) -> FieldProblem:
    """Told of one of ``UNKNOWN``."""
    if isinstance(error, UnknownReferenceError):
        prefix = "/job" if isinstance(spec, SweepSpec) else ""
        return FieldProblem(prefix + error.problem.pointer, error.problem.detail)
    assert isinstance(spec, SweepSpec), error
    named = str(error.args[0])
    if isinstance(error, UnknownConfigurationError):
        told = f"there is no configuration {named!r} that a winner could replace; put one at /configurations/NAME"
        return FieldProblem("/promote", told)
    pointer = f"/warm_start/{spec.warm_start.index(named)}"
    if isinstance(error, OtherMetricError):
        told = f"{named} was over {error.args[1]!r}, this sweep is over {spec.metric!r}; take it out"
        return FieldProblem(pointer, told)
    return FieldProblem(pointer, f"there is no sweep {named[:80]!r}; give a sweep's whole id")

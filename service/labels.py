"""Labels that the service gives jobs itself: they tell whose a job is, so nobody else may set them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workers.assignment import SWEEP_LABEL
from workers.errors import FieldProblem, SpecError
from workers.spec import JobSpec, parse_job_spec

SCHEDULE_LABEL = "schedule"
TRIAL_LABEL = "trial"
PROMOTION_LABEL = "promotion"
CONTENDER_LABEL = "contender"
OWN = frozenset({SWEEP_LABEL, SCHEDULE_LABEL, TRIAL_LABEL, PROMOTION_LABEL, CONTENDER_LABEL})


def parse_given_job(document: object) -> JobSpec:
    """As ``parse_job_spec``, of what somebody submits. Raises SpecError."""
    spec = parse_job_spec(document)
    if problems := label_problems(spec.labels, "/labels"):
        raise SpecError(problems)
    return spec


def label_problems(labels: Mapping[str, object], pointer: str, joint: str = "/") -> Sequence[FieldProblem]:
    """One for each of the labels, which stand at ``pointer``, then ``joint``, that are not for users to give."""
    told = "the service sets this label itself, by it a job belongs to a {}; name it otherwise, my-{} say"
    owners = {key: "schedule" if key == SCHEDULE_LABEL else "sweep" for key in labels if key in OWN}
    return [FieldProblem(f"{pointer}{joint}{key}", told.format(owner, key)) for key, owner in owners.items()]

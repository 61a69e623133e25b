"""The jobs that a space makes of a sweep's job: what is wrong with any of them. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import get_args

from tuning.job_values import ANY_JOB
from tuning.paths import DEFAULT_OF, Document, applied, found, other_spelling, without
from tuning.space import Space, space_of
from tuning.space_problems import place
from tuning.spec import SweepSpec
from tuning.values import Params, told
from workers.errors import FieldProblem, SpecError
from workers.exchange_options import LOSSY, schemes_with
from workers.problems import nearest
from workers.spec import parse_job_spec
from workers.spec_parts import SchemeName

MAX_CORNERS = 10_000
_NAME = "trial"


@dataclass(slots=True)
class _Complaint:
    """One pointer into the job that some corners fail at: the first of them, and how many there are."""

    detail: str
    params: Params
    count: int = 1


@dataclass(slots=True)
class _Complaints:
    by_code: dict[str, dict[str, _Complaint]] = field(default_factory=lambda: {"INVALID": {}, "NOT_AVAILABLE": {}})
    num_points: int = 0

    def add(self, error: SpecError, params: Params) -> None:
        known = self.by_code[error.code]
        for problem in error.problems:
            if problem.pointer in known:
                known[problem.pointer].count += 1
            else:
                known[problem.pointer] = _Complaint(detail=problem.detail, params=params)


def job_problems(spec: SweepSpec) -> tuple[list[FieldProblem], list[FieldProblem]]:
    """What is wrong with the jobs of the space's corners, and what of them is not built yet."""
    space = space_of(spec.space)
    if without_scheme := _options_of_no_scheme(spec):
        return without_scheme, []
    try:
        applied(spec.job, dict.fromkeys(spec.space))
    except KeyError as error:
        path = error.args[0]
        detail = f"{path} leads through a value of the job that is no mapping; write that as a mapping in the job"
        return [FieldProblem(place(path), detail)], []
    corners = list(itertools.islice(space.corners(), MAX_CORNERS + 1))
    if len(corners) > MAX_CORNERS:
        detail = (
            f"there are more than {MAX_CORNERS:,} combinations of choices to check; list fewer, or make them numbers"
        )
        return [FieldProblem("/space", detail)], []
    complaints = _Complaints(num_points=len(corners))
    for params in corners:
        try:
            parse_job_spec({**applied(spec.job, params), "name": _NAME})
        except SpecError as error:
            complaints.add(error, params)
    wrong, missing = (_problems(complaints, code, space) for code in ("INVALID", "NOT_AVAILABLE"))
    return wrong, missing


def resolved_job(spec: SweepSpec) -> Document:
    """The job with every default that all trials have.

    What is searched has a value only where the user gave one beside the space.
    """
    first = next(space_of(spec.space).corners())
    parsed = parse_job_spec({**applied(spec.job, first), "name": _NAME})
    document: Document = parsed.model_dump(mode="json")
    for path in (*spec.space, *(hanging for hanging, on in DEFAULT_OF.items() if on in spec.space)):
        was_given, value = found(spec.job, path)
        document = applied(document, {path: value}) if was_given else without(document, path)
    return without(document, "name")


def _options_of_no_scheme(spec: SweepSpec) -> list[FieldProblem]:
    """Of a job whose exchange is a plain name, the default or another, which has no options."""
    given = spec.job.get("communication", "auto")
    if not isinstance(given, str) or "communication.scheme" in spec.space:
        return []
    where, there = ("in the job", "there") if "communication" in spec.job else ("by default", "in the job")
    meant, problems = nearest(given, get_args(SchemeName)), list[FieldProblem]()
    for path in spec.space:
        if other_spelling(path) is None:
            continue
        # Who lets the service choose has allowed no loss.
        schemes = sorted(schemes_with(path.rpartition(".")[2]), key=LOSSY.__contains__)
        told = (
            f"communication is {given!r:.80} {where}, a plain name that takes no options; write "
            f"communication: {{scheme: {meant if meant in schemes else schemes[0]}}} {there}"
        )
        more = f", or another of {', '.join(schemes)}" if len(schemes) > 1 else ""
        problems.append(FieldProblem(place(path), told + more))
    return [*_unknown_name(given), *problems] if problems else []


def _unknown_name(given: str) -> list[FieldProblem]:
    """Of a plain name that no scheme has."""
    try:
        parse_job_spec({**ANY_JOB, "communication": given})
    except SpecError as error:
        return [FieldProblem(f"/job{problem.pointer}", problem.detail) for problem in error.problems]
    return []


def _problems(complaints: _Complaints, code: str, space: Space) -> list[FieldProblem]:
    problems = []
    for pointer, complaint in complaints.by_code[code].items():
        path = _searched(pointer, space, complaint.params)
        is_always = complaint.count == complaints.num_points
        where = {k: v for k, v in complaint.params.items() if not k.startswith("config.")}
        cause = "" if is_always and path is None else f"with {told(where)}: "
        problems.append(FieldProblem(place(path) if path else f"/job{pointer}", cause + complaint.detail))
    return problems


def _searched(pointer: str, space: Space, params: Params) -> str | None:
    """The parameter that set the value at the pointer, or something in or around it."""
    wrong = pointer[1:].replace("/", ".")
    inside = (p.path for p in space.parameters if p.path in params)
    return next((p for p in inside if p == wrong or p.startswith(wrong + ".") or wrong.startswith(p + ".")), None)

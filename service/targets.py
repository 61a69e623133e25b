"""What a schedule starts: the kinds there are, and how the spec of each is read. Pure.

A further kind is plugged in here (``_READERS``) and in ``service/store/children.py``, nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workers.errors import FieldProblem, SpecError
from workers.spec import JobSpec, parse_job_spec


class Kind(StrEnum):
    """What a child is."""

    JOB = "job"


_NOT_BUILT = {"sweep": "{job: ...}"}
"""Kinds of the contract that are refused, with what to use instead."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is started at each nominal time."""

    kind: Kind
    spec: JobSpec

    @property
    def document(self) -> dict[str, Any]:
        """As in a schedule's spec, with every default."""
        return {self.kind: json.loads(self.spec.model_dump_json())}


def read_target(document: Mapping[str, Any], name: str) -> Target:
    """The target of a schedule of that name; a child has it too where the target names none.

    Raises SpecError, its pointers from the schedule's spec on.
    """
    if len(document) != 1 or (kind := next(iter(document))) not in {*Kind, *_NOT_BUILT}:
        seen = ", ".join(repr(key)[:40] for key in document) or "nothing"
        raise SpecError([FieldProblem("/target", f"must hold one of {', '.join(Kind)} (seen: {seen})")])
    if kind in _NOT_BUILT:
        told = f"a {kind} is not built yet; use {_NOT_BUILT[kind]}"
        raise SpecError([FieldProblem(f"/target/{kind}", told)], code="NOT_AVAILABLE")
    try:
        return Target(Kind(kind), _READERS[Kind(kind)](document[kind], name))
    except SpecError as error:
        problems = [FieldProblem(f"/target/{kind}{p.pointer}", p.detail) for p in error.problems]
        raise SpecError(problems, code=error.code) from None


def _read_job(document: object, name: str) -> JobSpec:
    return parse_job_spec({"name": name, **document} if isinstance(document, Mapping) else document)


_READERS: Mapping[Kind, Callable[[object, str], JobSpec]] = {Kind.JOB: _read_job}

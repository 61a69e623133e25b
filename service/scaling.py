"""Reading a wish for another size, against the job it is for. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from service.errors import InvalidError
from service.records import JobRow, Scale
from workers.errors import FieldProblem
from workers.spec_parts import whole_number

MAX_REASON_CHARS = 500
MAX_WORKERS = 1024
_KEYS = ("workers", "reason")


def read_scale(document: object, job: JobRow) -> Scale:
    """``{workers: 3 | {min, max} | "auto", reason}`` as a Scale.

    A number pins the size within the range in force; a range within the spec's replaces that and frees
    the size; ``auto`` frees it and brings back the range of the spec. Raises InvalidError.
    """
    if not isinstance(document, Mapping):
        raise _refused("", f"an object with `workers` is needed, this is a {type(document).__name__}")
    for key in document:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(_KEYS)}"
            raise _refused(f"/{key}", f"unknown key {key!r}; {hint}")
    if "workers" not in document:
        raise _refused("/workers", "is required: a number, {min, max} or auto")
    reason = _reason(document.get("reason"))
    match whole_number(document["workers"]):
        case "auto":
            spec = job.spec.workers
            return Scale(min=spec.min, max=spec.max, actor="user", reason=reason)
        case bool():
            raise _refused("/workers", "is true or false; give a number, {min, max} or auto")
        case int() as number:
            return _pin(number, job, reason)
        case Mapping() as given:
            return _range(given, job, reason)
        case other:
            raise _refused("/workers", f"{str(other)[:80]!r} is no size; give a number, {{min, max}} or auto")


def _pin(number: int, job: JobRow, reason: str) -> Scale:
    low, high = job.scale.min, job.scale.max
    if not low <= number <= high:
        raise _refused("/workers", f"{number} is outside the job's range {low} to {high}; {_way_out(number, job)}")
    batch = job.spec.batch.global_size
    if number > batch:
        raise _refused("/workers", f"{number} workers cannot share a batch of {batch} samples; use at most {batch}")
    return Scale(min=low, max=high, pinned=number, actor="user", reason=reason)


def _way_out(number: int, job: JobRow) -> str:
    allowed = job.spec.workers
    if allowed.min <= number <= allowed.max:
        return "choose a number in it, or first free the spec's range by `auto`"
    return "choose a number in it, or submit the job anew with another `workers`"


def _range(given: Mapping[object, object], job: JobRow, reason: str) -> Scale:
    for key in given:
        if key not in ("min", "max"):
            raise _refused(f"/workers/{key}", f"unknown key {key!r}; known here: min, max")
    low, high = _bound(given, "min"), _bound(given, "max")
    if low > high:
        raise _refused("/workers/min", f"min={low} is above max={high}; lower min or raise max")
    allowed = job.spec.workers
    for key, value in (("min", low), ("max", high)):
        if not allowed.min <= value <= allowed.max:
            raise _refused(
                f"/workers/{key}",
                f"{key}={value} is outside the range {allowed.min} to {allowed.max} that the job was submitted with; "
                "stay in it, or submit the job anew with another `workers`",
            )
    batch = job.spec.batch.global_size
    if low > batch:
        raise _refused(
            "/workers/min", f"min={low} workers cannot share a batch of {batch} samples; use at most {batch}"
        )
    return Scale(min=low, max=high, actor="user", reason=reason)


def _bound(given: Mapping[object, object], key: str) -> int:
    value = whole_number(given.get(key))
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WORKERS:
        raise _refused(f"/workers/{key}", f"must be a whole number from 1 to {MAX_WORKERS} (seen: {str(value)[:80]})")
    return value


def _reason(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_REASON_CHARS:
        raise _refused("/reason", f"must be a text of at most {MAX_REASON_CHARS} characters")
    return value


def _refused(pointer: str, detail: str) -> InvalidError:
    return InvalidError("the wish for a size is refused", [FieldProblem(pointer, detail)])

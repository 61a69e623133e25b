"""Jobs side by side: where their specs differ, and their metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.documents import Document
from service.records import JobRow

MAX_COMPARED = 50
MAX_SPEC_CHARS = 8 * 2**20
"""Of all specs that are compared: each may be as large as the body of a request."""

_ALWAYS_DIFFERENT = frozenset({"name"})


def compare(jobs: Sequence[JobRow], metrics: Sequence[Document]) -> Document:
    """``{keys, differences, series}``.

    ``differences``: ``[{path, values: {job id: value}}]`` for each leaf of the resolved specs that is
    not the same in all; a job that lacks the leaf is left out of ``values``. ``series``: ``[{job_id, name, points}]``
    in the order of ``jobs``, points as in ``/metrics``.
    """
    flat = {job.id: _leaves(job.document) for job in jobs}
    paths = sorted({path for leaves in flat.values() for path in leaves})
    differences = []
    for path in paths:
        values = {job_id: leaves[path] for job_id, leaves in flat.items() if path in leaves}
        if path not in _ALWAYS_DIFFERENT and (len(values) < len(flat) or _differ(list(values.values()))):
            differences.append({"path": path, "values": values})
    series = [
        {"job_id": job.id, "name": job.name, "points": found["points"]}
        for job, found in zip(jobs, metrics, strict=True)
    ]
    keys = sorted({key for found in metrics for key in found["keys"]})
    return {"keys": keys, "differences": differences, "series": series}


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        found: dict[str, Any] = {}
        for key, part in value.items():
            found.update(_leaves(part, f"{path}.{key}" if path else str(key)))
        return found
    return {path: value}


def _differ(values: Sequence[Any]) -> bool:
    # 1 and True are equal in Python, and not the same setting.
    first = values[0]
    return any(type(value) is not type(first) or value != first for value in values[1:])

"""What a job has at a path, however it is written there, or would have by default. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuning.paths import found, is_free
from tuning.values import Scalar, same
from workers.errors import SpecError
from workers.exchange_options import BUCKET_MIB, ExchangeSpec, filled, named, schemes_with
from workers.spec import parse_job_spec

ANY_JOB = {"name": "x", "entrypoint": "workers.recipes.digits:build", "steps": 1}
LENGTHS = ("steps", "epochs", "samples")
"""Exactly one of them is given, so none has a default."""

_USUAL_OPTIONS = {"bucket_mib": BUCKET_MIB, "dense_first": 0}
"""What an exchange has that is told neither: plans leave it out."""


def holds(job: Mapping[str, Any], path: str, value: Scalar) -> bool:
    return same(value_of(job, path), value)


def value_of(job: Mapping[str, Any], path: str) -> Any:
    """What the job has there, or the default that it would have; None where there is neither.

    Where a spec takes a plain value for a mapping, the plain one: an exchange's scheme, the number of workers.
    """
    is_given, value = found(job, path)
    if (is_given and not isinstance(value, Mapping)) or is_free(path) or path in LENGTHS:
        return value
    return _plain(path, found(_resolved(job, path), path)[1])


def point_value(job: Mapping[str, Any], path: str) -> Any:
    """The same as a value of a search, but for an exchange that no plain name says all of: that is no such value."""
    is_given, value = found(job, path)
    if path == "communication" and is_given and isinstance(value, Mapping):
        exchange = _exchange_of(value)
        return value if exchange is None or exchange != named(exchange.scheme) else exchange.scheme
    return value_of(job, path)


def _exchange_of(written: object) -> ExchangeSpec | None:
    try:
        return parse_job_spec({**ANY_JOB, "communication": written}).exchange
    except SpecError:
        return None


def _plain(path: str, value: Any) -> Any:
    if path == "communication" and isinstance(value, Mapping):
        return value["scheme"]
    if path == "workers" and isinstance(value, Mapping) and value["min"] == value["max"]:
        return value["min"]
    return value


def _resolved(job: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The section that the path leads into, with its defaults; the rest of the job may be searched, or wrong."""
    first = path.split(".")[0]
    try:
        parsed = parse_job_spec({**ANY_JOB, **({first: job[first]} if first in job else {})})
    except SpecError:
        return {}
    exchange = parsed.exchange
    usual = {name: value for name, value in _USUAL_OPTIONS.items() if exchange.scheme in schemes_with(name)}
    options = {**usual, **dict(filled(exchange.scheme, exchange.options))}
    return {**parsed.model_dump(mode="json"), "communication": {**exchange.model_dump(mode="json"), "options": options}}

"""Configurations as the store gives and takes them: job specs under a name, with what they replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.spec import JobSpec, parse_job_spec

BY_HAND = "user"
"""Who replaced a version where it was no sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRow:
    """One configuration as stored. Times are Unix seconds.

    ``version`` counts its specs from 1 (If-Match compares it), ``changed`` is the number of the last write.
    """

    name: str
    spec_json: str
    version: int
    changed: int
    created_at: float
    updated_at: float

    @property
    def document(self) -> dict[str, Any]:
        """The job spec without name, with every default, as a fresh JSON document."""
        value: dict[str, Any] = json.loads(self.spec_json)
        return value

    @property
    def etag(self) -> str:
        """``"v<version>.<changed>"``, as of a job."""
        return f'"v{self.version}.{self.changed}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedVersion:
    """A version that is no longer in use: when and by whom it was replaced (``BY_HAND``, or a sweep's id).

    ``evidence`` is what the sweep measured; None where nobody had to prove anything.
    """

    version: int
    spec_json: str
    replaced_at: float
    by: str
    evidence: Mapping[str, Any] | None

    @property
    def document(self) -> dict[str, Any]:
        """As of ``ConfigurationRow``."""
        value: dict[str, Any] = json.loads(self.spec_json)
        return value


@dataclass(frozen=True, slots=True)
class ConfigurationView:
    """A configuration with a page of the versions before it, the latest first, as one transaction saw them.

    ``next_page_token`` is None on the last.
    """

    configuration: ConfigurationRow
    history: list[ReplacedVersion]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """The configuration, and its version, that a sweep's job was taken from."""

    name: str
    version: int


def named_job(document: Mapping[str, Any], name: str) -> JobSpec:
    """The job of a configuration's spec under a name. Raises SpecError where this version takes it no longer."""
    return parse_job_spec({**document, "name": name})


def nameless(job: JobSpec) -> dict[str, Any]:
    """A job's spec as a configuration keeps it."""
    document: dict[str, Any] = json.loads(job.model_dump_json())
    return {key: value for key, value in document.items() if key != "name"}

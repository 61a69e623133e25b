"""The documents about configurations as types, for ``/openapi.json`` and the tests."""

from __future__ import annotations

from pydantic import JsonValue

from service.api.shapes import Shape


class ReplacedVersion(Shape):
    """A version that is in use no longer: ``by`` is ``user`` or a sweep's id, which left its evidence."""

    version: int
    replaced_at: str
    by: str
    evidence: dict[str, JsonValue] | None
    spec: dict[str, JsonValue]


class ConfigurationHead(Shape):
    """A job spec without name, under a name; ``version`` counts from 1."""

    name: str
    spec: dict[str, JsonValue]
    version: int
    created_at: str
    updated_at: str
    etag: str


class Configuration(ConfigurationHead):
    """A configuration with one page of the versions before it, the latest first; a hundred of them are kept."""

    history: list[ReplacedVersion]
    next_page_token: str | None


class ConfigurationList(Shape):
    """One page, by name."""

    configurations: list[ConfigurationHead]
    next_page_token: str | None

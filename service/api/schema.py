"""What ``/openapi.json`` says besides what FastAPI finds out: bodies that are read by hand, and errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.api.examples import (
    CONFIGURATION_EXAMPLES,
    EXTEND_EXAMPLES,
    JOB_EXAMPLES,
    PROMOTE_EXAMPLES,
    REASON_EXAMPLES,
    SCALE_EXAMPLES,
    SCHEDULE_EXAMPLES,
    SWEEP_EXAMPLES,
    Examples,
)
from service.api.problems import MEDIA_TYPE
from service.api.shapes import ProblemShape
from service.schedule_spec import ScheduleSpec
from service.version import service_version
from tuning.spec import SweepSpec
from tuning.spec_parts import MAX_TRIALS
from workers.spec import JobSpec
from workers.spec_parts import NAME_PATTERN

_REF = "#/components/schemas/"


OPEN: dict[str, Any] = {"security": []}
"""Declaration of a call that answers without a token."""


def only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declarations of errors that a call may answer with."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{_REF}ProblemShape"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declarations of errors that a call of the API may answer with, besides those that any may."""
    return only(*sorted({400, 401, 422, 500, *statuses}))


def success(status: int, model: type[Any], text: str = "") -> dict[int | str, dict[str, Any]]:
    """Declaration of a further good answer."""
    return {status: {"model": model, "description": text or HTTPStatus(status).phrase}}


def body_of(schema: dict[str, Any], examples: Examples, *, is_required: bool = True) -> dict[str, Any]:
    """Declaration of a body of JSON that the route reads itself."""
    content = {"application/json": {"schema": schema, "examples": examples} if examples else {"schema": schema}}
    return {"requestBody": {"required": is_required, "content": content}}


SPEC_BODY = body_of({"$ref": f"{_REF}JobSpec"}, JOB_EXAMPLES)
CONFIGURATION_BODY = body_of({"$ref": f"{_REF}ConfigurationSpec"}, CONFIGURATION_EXAMPLES)
SWEEP_BODY = body_of({"$ref": f"{_REF}SweepSpec"}, SWEEP_EXAMPLES)
EXTEND_BODY = body_of(
    {
        "type": "object",
        "required": ["trials"],
        "additionalProperties": False,
        "properties": {"trials": {"type": "integer", "minimum": 1, "maximum": MAX_TRIALS}},
    },
    EXTEND_EXAMPLES,
)
PROMOTE_BODY = body_of(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {"configuration": {"type": "string", "pattern": NAME_PATTERN}},
    },
    PROMOTE_EXAMPLES,
    is_required=False,
)
SCHEDULE_BODY = body_of({"$ref": f"{_REF}ScheduleSpec"}, SCHEDULE_EXAMPLES)
REASON_BODY = body_of(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {"reason": {"type": "string", "maxLength": 500}},
    },
    REASON_EXAMPLES,
    is_required=False,
)
EMPTY_BODY = body_of({"type": "object", "maxProperties": 0}, {}, is_required=False)
SCALE_BODY = body_of(
    {
        "type": "object",
        "required": ["workers"],
        "additionalProperties": False,
        "properties": {
            "workers": {
                "anyOf": [
                    {"type": "integer", "minimum": 1},
                    {"const": "auto"},
                    {
                        "type": "object",
                        "required": ["min", "max"],
                        "additionalProperties": False,
                        "properties": {key: {"type": "integer", "minimum": 1} for key in ("min", "max")},
                    },
                ]
            },
            "reason": {"type": ["string", "null"], "maxLength": 500},
        },
    },
    SCALE_EXAMPLES,
)
ZIP_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


_MADE_BY = {
    "job_id": ("jobs_create", "$response.body#/id"),
    "sweep_id": ("sweeps_create", "$response.body#/id"),
    "schedule_id": ("schedules_create", "$response.body#/id"),
    "name": ("configurations_put", "$request.path.name"),
}
"""The call that makes what a path's parameter names, and where the name is found then."""


def install_schema(app: FastAPI) -> None:
    """Build the schema once, on the first call for it."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app)
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]  # FastAPI's documented way to extend the schema


def _schema(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title="Concertina", version=service_version(), routes=app.routes)
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in (JobSpec, SweepSpec, ScheduleSpec, ProblemShape):
        built = model.model_json_schema(ref_template=f"{_REF}{{model}}", mode="validation")
        for name, part in built.pop("$defs", {}).items():
            # Of parts that write themselves FastAPI only knows that they are objects; what is written is accepted, too.
            if "properties" not in schemas.get(name, {}):
                schemas[name] = part
        schemas.setdefault(model.__name__, built)
    schemas["ConfigurationSpec"] = _without_name(schemas["JobSpec"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for calls in schema["paths"].values():
        for call in calls.values():
            # FastAPI declares its own form of a 422, which this service never answers with.
            if "HTTPValidationError" in str(call["responses"].get("422", "")):
                call["responses"]["422"] = failures()[422]
    _link(schema["paths"])
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    return schema


def _link(paths: dict[str, Any]) -> None:
    """Let the good answers of each call that makes something tell what can be done with it."""
    calls = {call["operationId"]: (path, call) for path, of_path in paths.items() for call in of_path.values()}
    for parameter, (maker, place) in _MADE_BY.items():
        names = sorted(name for name, (path, _) in calls.items() if f"{{{parameter}}}" in path)
        links = {name: {"operationId": name, "parameters": {parameter: place}} for name in names}
        for status, answer in calls[maker][1]["responses"].items():
            if status.startswith("2"):
                answer["links"] = links


def _without_name(job: dict[str, Any]) -> dict[str, Any]:
    """A job spec as a configuration has it."""
    properties = {name: part for name, part in job["properties"].items() if name != "name"}
    required = [name for name in job["required"] if name != "name"]
    told = "A job spec without name, which is the configuration's."
    return {**job, "title": "ConfigurationSpec", "description": told, "properties": properties, "required": required}

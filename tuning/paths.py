"""Paths into a job spec, such as ``optimizer.lr``: which there are, and setting a value at one. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args, get_origin

from pydantic import BaseModel

from workers.exchange_options import OPTION_NAMES
from workers.spec import JobSpec

Document: TypeAlias = dict[str, Any]

MAX_PATH_CHARS = 128
_SCHEME, _BESIDE, _AMONG = "communication.scheme", "communication.", "communication.options."
DEFAULT_OF = {"communication.loss_class": "communication.scheme", "workers.max": "workers.min"}
"""Fields whose default hangs on another field: where that is searched, each trial has its own."""

_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def path_fault(path: str) -> str:
    """What is wrong with a path, with what to write instead; empty where it leads to something."""
    if len(path) > MAX_PATH_CHARS or not _PATH.fullmatch(path):
        return (
            f"{path!r:.80} is not a path of letters, digits, '_' and '-' joined by dots, "
            f"at most {MAX_PATH_CHARS} characters; write for example optimizer.lr"
        )
    if path == "name":
        return "a sweep names its trials itself; search something else"
    model: type[BaseModel] = JobSpec
    parts = path.split(".")
    for depth, part in enumerate(parts):
        field = model.model_fields.get(part)
        if field is None and is_option(".".join(parts[: depth + 1])):
            return _fault_at_end(parts, depth, None)
        if field is None:
            return _unknown(parts[:depth], part, model)
        if _is_free(field.annotation):
            return _fault_inside(parts, depth, field.annotation)
        nested = _model_in(field.annotation)
        if nested is None or depth == len(parts) - 1:
            return _fault_at_end(parts, depth, nested)
        model = nested
    raise AssertionError("a path has at least one part")


def is_free(path: str) -> bool:
    """Whether the job spec takes any value there, as it does for the user's own ``config``."""
    return path.startswith("config.")


def is_option(path: str) -> bool:
    """Whether it leads to an option of an exchange, beside its scheme."""
    return path.startswith(_BESIDE) and path.removeprefix(_BESIDE) in OPTION_NAMES


def hangs_on_scheme(path: str) -> bool:
    """Whether the scheme of an exchange decides what is there: the exchange by its plain name, or a default."""
    return path == "communication" or other_spelling(path) is not None or DEFAULT_OF.get(path) == _SCHEME


def other_spelling(path: str) -> str | None:
    """The other path to the same value: an option stands beside the scheme of an exchange, or in its ``options``."""
    if is_option(path):
        return _AMONG + path.removeprefix(_BESIDE)
    beside = _BESIDE + path.removeprefix(_AMONG)
    return beside if path.startswith(_AMONG) and is_option(beside) else None


def applied(document: Mapping[str, Any], values: Mapping[str, Any]) -> Document:
    """A copy of the document with each value at its path; mappings on the way are made where they are missing.

    What the document has at another spelling of the path gives way to it. An exchange by its plain name is one of that
    scheme where something of it has a path.

    Raises KeyError(path) where something that is not a mapping is in the way.
    """
    result = dict(document)
    plain = result.get("communication")
    if isinstance(plain, str) and any(path.startswith(_BESIDE) for path in values):
        result["communication"] = {"scheme": plain}
    for path, value in values.items():
        if other := other_spelling(path):
            result = _without(result, other)
        *way, last = path.split(".")
        here = result
        for part in way:
            inner = here.get(part)
            if inner is not None and not isinstance(inner, Mapping):
                raise KeyError(path)
            here[part] = dict(inner or {})
            here = here[part]
        here[last] = value
    return result


def found(document: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """Whether the document has something at the path, however it is spelled, and what."""
    other = other_spelling(path)
    if path == _SCHEME and isinstance(document.get("communication"), str):
        path = "communication"
    is_there, value = _found(document, path)
    return (is_there, value) if is_there or other is None else _found(document, other)


def without(document: Mapping[str, Any], path: str) -> Document:
    """A copy of the document with nothing at the path, however it is spelled."""
    other = other_spelling(path)
    return _without(document if other is None else _without(document, other), path)


def _found(document: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    here: Any = document
    for part in path.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return False, None
        here = here[part]
    return True, here


def _without(document: Mapping[str, Any], path: str) -> Document:
    first, _, rest = path.partition(".")
    if not rest:
        return {key: value for key, value in document.items() if key != first}
    inner = document.get(first)
    return {**document, first: _without(inner, rest)} if isinstance(inner, Mapping) else dict(document)


def _fault_at_end(parts: list[str], depth: int, nested: type[BaseModel] | None) -> str:
    here = ".".join(parts[: depth + 1])
    if depth < len(parts) - 1:
        return f"{here} has nothing inside it that could be called {parts[depth + 1]!r}; search {here}"
    # `workers: 3` is a value of its own; other parts are only mappings.
    if nested is not None and here not in ("workers", "precision", "communication"):
        known = ", ".join(f"{here}.{key}" for key in sorted(nested.model_fields))
        return f"{here} is a mapping; search what is in it: {known}"
    return ""


def _fault_inside(parts: list[str], depth: int, annotation: Any) -> str:
    here, num_below = ".".join(parts[: depth + 1]), len(parts) - depth - 1
    if get_origin(annotation) is list:
        return f"{here} is a list; a search sets single values, so put what varies into config"
    if num_below == 0:
        return f"{here} is a mapping of your own; search a key of it, such as {here}.KEY"
    if num_below > 1 and here != "config":
        return f"{here} maps names to single values; search {here}.{parts[depth + 1]}"
    return ""


def _is_free(annotation: Any) -> bool:
    return get_origin(annotation) in (dict, list)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)


def _unknown(way: list[str], part: str, model: type[BaseModel]) -> str:
    prefix = ".".join([*way, ""])
    options = OPTION_NAMES if prefix == _BESIDE else frozenset[str]()
    known = sorted({*model.model_fields, *options} - {"name"})
    near = difflib.get_close_matches(part, known, n=1)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(known)}"
    return f"the job spec has no {prefix}{part}; {hint}"

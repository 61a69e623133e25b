"""What pydantic complains about, told as problems of a document: a pointer, the value seen, what to give instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError

from workers.errors import FieldProblem

Place: TypeAlias = tuple[int | str, ...]

_KINDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "literal_error": "",
    "enum": "",
}

_OTHER_WORDS = {"fp32": "none", "float32": "none"}
"""What is written for a choice that has another name where there is no such format: gradients as they are."""

_QUOTED_NUMBER = re.compile(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*")


def problems_of(
    error: ValidationError, document: Mapping[Any, Any], model: type[BaseModel], told: Mapping[Place, str], hidden: str
) -> list[FieldProblem]:
    """One problem a field of ``document``, in the order in which they were found.

    A union complains once for each of its alternatives; that becomes one text. ``told`` has texts for
    places that deserve better than the general one, with ``*`` for any last key; values under the top-level
    key ``hidden`` are never shown.
    """
    complaints: dict[Place, list[Any]] = {}
    for complaint in error.errors(include_url=False):
        complaints.setdefault(_place(document, complaint), []).append(complaint)
    problems = []
    for place, found in complaints.items():
        is_told_deeper = any(len(p) > len(place) and p[: len(place)] == place for p in complaints)
        if is_told_deeper and all(c["type"] in _KINDS for c in found):
            continue
        problems.append(FieldProblem(_pointer(place), _detail(place, found, model, told, hidden)))
    return problems


def _place(document: Any, complaint: Mapping[str, Any]) -> Place:
    """Where in the document it is: pydantic's location without the names of a union's alternatives."""
    place: list[int | str] = []
    here = document
    for part in complaint["loc"]:
        if (isinstance(here, Mapping) and part in here) or (isinstance(here, list) and isinstance(part, int)):
            here = here[part]
            place.append(part)
    if complaint["type"] == "missing":
        place.append(complaint["loc"][-1])
    return tuple(place)


def _pointer(place: Place) -> str:
    return "".join(f"/{pointer_part(str(part))}" for part in place)


def pointer_part(key: str) -> str:
    """A key as a JSON Pointer writes it."""
    return key.replace("~", "~0").replace("/", "~1")


def _detail(
    place: Place, found: Sequence[Mapping[str, Any]], model: type[BaseModel], told: Mapping[Place, str], hidden: str
) -> str:
    first = found[0]
    special = told.get(place) or (told.get((*place[:-1], "*")) if place else None)
    if first["type"] == "missing":
        return "is required"
    if first["type"] == "extra_forbidden":
        return special or _unknown_key(place, model)
    seen = first["input"]
    is_shown = not isinstance(seen, Mapping | list) and place[:1] != (hidden,)
    shown = f" (seen: {seen!r:.80})" if is_shown else ""
    exact = next((c for c in found if c["type"] not in _KINDS), None)
    if exact is not None and exact["type"] == "invalid_key":
        return f"the keys of a mapping must be texts (seen: {seen!r:.80})"
    if exact is not None:
        message = exact["msg"].removeprefix("Value error, ")
        is_own = exact["type"] == "value_error"
        return (message if is_own else special or re.sub(r"^\w+ should ", "must ", message)) + shown
    options = [o for c in found for o in re.findall(r"'([^']*)'", str(c.get("ctx", {}).get("expected", "")))]
    kinds = dict.fromkeys(_KINDS[c["type"]] for c in found if _KINDS[c["type"]])
    wanted = special or f"must be {' or '.join([*filter(None, [_listed(options)]), *kinds])}"
    return f"{wanted}{shown}{_hint(seen, options, wanted)}"


def _hint(seen: object, options: Sequence[str], wanted: str) -> str:
    """What a text in the wrong place was probably meant to be."""
    if not isinstance(seen, str):
        return ""
    if _QUOTED_NUMBER.fullmatch(seen) and "number" in wanted:
        return "; a number is written without quotes"
    near = nearest(seen, options, cutoff=0.5)
    return f"; did you mean {near!r}?" if near else ""


def nearest(text: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Which of what is ``known`` a text was probably meant to be, in capitals or not; None where none is like it."""
    by_small = {each.lower(): each for each in known}
    if text.lower() not in by_small and (other := _OTHER_WORDS.get(text.lower())) in by_small:
        return other
    near = difflib.get_close_matches(text.lower(), by_small, n=1, cutoff=cutoff)
    return by_small[near[0]] if near else None


def _listed(options: Sequence[str]) -> str:
    quoted = [repr(option) for option in options]
    return " or ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))


def _unknown_key(place: Place, model: type[BaseModel]) -> str:
    known = _known_keys(place[:-1], model)
    near = nearest(str(place[-1]), known)
    hint = f"did you mean {near!r}?" if near else f"known here: {', '.join(known)}"
    return f"unknown key {place[-1]!r:.80}; {hint}"


def _known_keys(place: Place, model: type[BaseModel]) -> list[str]:
    for part in place:
        field = model.model_fields.get(str(part))
        nested = _model_in(field.annotation) if field is not None else None
        model = nested or model
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)

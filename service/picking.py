"""Reads some values out of an object's JSON text, without the others, of which points and roll-ups have many. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

Read: TypeAlias = Callable[[str], dict[str, Any]]

MAX_SOUGHT = 8
"""Keys that are looked for one by one; for more of them the whole text is read."""

_value_at = json.JSONDecoder().raw_decode


def reader(keys: frozenset[str] | None) -> Read:
    """What reads objects of which only ``keys`` are wanted, in the order of the text; all of them where None.

    Keys whose value is null are left out: an evaluation that gave no number is a gap, too, to all who draw or count.

    For texts that ``json.dumps`` made compact, whose values hold neither texts nor objects: then a key's text between
    its quotes and a colon, with a brace or a comma before, can be nothing but the key, as quotes in others are escaped.
    """
    if keys is None:
        return _whole
    if len(keys) > MAX_SOUGHT:
        return lambda text: {key: value for key, value in _whole(text).items() if key in keys}
    sought = [(key, f"{json.dumps(key)}:") for key in keys]

    def read(text: str) -> dict[str, Any]:
        found = {key: at for key, name in sought if (at := _after(text, name))}
        order = found if len(found) < 2 else sorted(found, key=found.__getitem__)
        return {key: value for key in order if (value := _value_at(text, found[key])[0]) is not None}

    return read


def _whole(text: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(text)
    return {key: value for key, value in values.items() if value is not None} if "null" in text else values


def _after(text: str, name: str) -> int:
    """Where the value of that name begins; 0 where there is none."""
    at = text.find(name)
    while at > 0 and text[at - 1] not in "{,":
        at = text.find(name, at + 1)
    return at + len(name) if at > 0 else 0

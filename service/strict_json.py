"""JSON as everybody reads it alike: no key twice, no NaN. For whatever people or programs send us."""

from __future__ import annotations

import json
from typing import Any, NoReturn

MAX_DIGITS = 4300  # more are not read by Python either, which would name a setting of its own


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, for a text that is no JSON ``json.JSONDecodeError``."""
    return json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_no_constant, parse_int=_whole_number)


def _whole_number(text: str) -> int:
    num_digits = len(text.removeprefix("-"))
    if num_digits > MAX_DIGITS:
        raise ValueError(f"a whole number has {num_digits} digits; at most {MAX_DIGITS} are read")
    return int(text)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {double!r:.80} stands twice; keep one of them")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; give a number, or null")

"""JSON as everybody reads it alike: no key twice, no NaN. For whatever people or programs send us."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, for a text that is no JSON ``json.JSONDecodeError``."""
    return json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_no_constant)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {double!r:.80} stands twice; keep one of them")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; give a number, or null")

"""A recipe's ``config`` read into a dataclass: unknown keys and wrong values are told, not ignored."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Options = TypeVar("Options")


def read_options(kind: type[Options], config: Mapping[str, Any]) -> Options:
    """Make ``kind``, a dataclass whose fields all have defaults, from a job's config.

    A value must have the type of the field's default; whole numbers will do for fractions.

    Raises ValueError naming the key, the value seen and what may be given.
    """
    defaults = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]  # TypeVar cannot be bound to dataclasses
    for key, value in config.items():
        if key not in defaults:
            near = difflib.get_close_matches(key, defaults, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(defaults))}"
            raise ValueError(f"unknown config key {key!r}; {hint}")
        _check_type(key, value, type(defaults[key]))
    return kind(**config)


def _check_type(key: str, value: object, wanted: type) -> None:
    allowed = (int, float) if wanted is float else (wanted,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and wanted is not bool):
        raise ValueError(f"config.{key}={value!r} is a {type(value).__name__}; give a {wanted.__name__}")


def check_range(key: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless ``low <= value <= high``."""
    if not low <= value <= high:
        raise ValueError(f"config.{key}={value} is outside {low} to {high}; give a value in that range")

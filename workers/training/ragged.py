"""Which of some samples is unlike the first, and in what: told where they cannot be made a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_MAX_TOLD = 60
_MAX_KEYS = 3


def odd_sample(samples: Sequence[Any], indexes: Sequence[int], name: str) -> str | None:
    """``train_data[5] has shape [3] where train_data[2] has shape [2]``; None where they look alike.

    Looked at are shapes of what has such, the keys of mappings, the lengths of lists, and types.
    """
    for sample, index in zip(samples[1:], indexes[1:], strict=False):
        found = _difference(samples[0], sample, "")
        if found is not None:
            place, first, other = found
            return f"{name}[{index}]{place} has {other} where {name}[{indexes[0]}]{place} has {first}"
    return None


def _difference(first: Any, other: Any, place: str) -> tuple[str, str, str] | None:
    """Where within a sample, and what there is in the one and the other."""
    if (seen := (_trait(first), _trait(other)))[0] != seen[1]:
        if max(map(len, seen)) > _MAX_TOLD and isinstance(first, Mapping) and isinstance(other, Mapping):
            seen = _keys(first, other), _keys(other, first)
        return (place, *seen)
    if isinstance(first, Mapping):
        inner: Sequence[Any] = list(first)
    elif isinstance(first, list | tuple):
        inner = range(len(first))
    else:
        return None
    found = (_difference(first[key], other[key], f"{place}[{key!r}]") for key in inner)
    return next((one for one in found if one is not None), None)


def _keys(mapping: Mapping[Any, Any], other: Mapping[Any, Any]) -> str:
    """How many, and some of those that the ``other`` has not."""
    more = sorted(str(key) for key in mapping if key not in other)
    return f"{len(mapping)} keys{f' (besides {more[:_MAX_KEYS]})' if more else ''}"


def _trait(value: Any) -> str:
    """What must be alike for a value to be stacked with others."""
    if isinstance(value, int | float | np.number):  # a batch may have all of them
        return "a number"
    if isinstance(shape := getattr(value, "shape", None), tuple):
        return f"shape {list(shape)}"
    if isinstance(value, Mapping):
        return f"the keys {sorted(map(str, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a value of type {type(value).__name__}"

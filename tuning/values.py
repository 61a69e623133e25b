"""The values that a search chooses: scalars of a job spec, and how two of them compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float | str | None

Params: TypeAlias = Mapping[str, Scalar]
"""One point of a search space: path in the job spec -> value, for the parameters that are active there."""


PointKey: TypeAlias = tuple[tuple[str, str], ...]


def key_of(params: Params) -> PointKey:
    """Equal for equal points, whatever the order in which they were written, and ``same`` values for one another."""
    return tuple(sorted((path, _spelled(value)) for path, value in params.items()))


def _spelled(value: Scalar) -> str:
    """1.0 as 1, and not the other way round: a whole number may be greater than any float, or lie between two."""
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def same(one: Scalar, other: Scalar) -> bool:
    """Whether a reader of YAML takes them for one value: 1 is 1.0, and neither is ``true``."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def told(params: Params) -> str:
    """A point in the middle of a sentence: ``optimizer.lr=0.1, batch.global_size=32``."""
    return ", ".join(f"{path}={_shown(path, value)}" for path, value in params.items())


def is_variable(path: str) -> bool:
    """Whether values there are shown nowhere: somebody may have written a secret as that of a variable."""
    return path.split(".")[0] == "env"


def _shown(path: str, value: Scalar) -> str:
    return "..." if is_variable(path) else f"{value:.80}" if isinstance(value, str) else str(value)

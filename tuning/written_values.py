"""Numbers and choices as people write them in a search space: what none is, why not, and what to write. Pure.

Each function gives the value back or raises ValueError for the spec part that holds it, whose problem tells the value
seen where it is a plain one.
"""

from __future__ import annotations

import math
import reprlib

from workers.spec_parts import MAX_SAMPLES, whole_number

MAX_CHOICES = 1_000
MAX_CHARACTERS = 1_000

_BOUND = "write the farthest value that is worth a trial"
_APART = "write how far values lie apart, or leave step out"
_BEYOND = "lies beyond 2^53, where samplers cannot tell whole numbers apart"


def bound(value: object) -> object:
    """An end of a range of numbers."""
    return _number(value, f"{_BOUND}, such as 0.1")


def step(value: object) -> object:
    """The distance of neighbours."""
    return _number(value, _APART)


def whole_bound(value: object) -> object:
    """An end of a range of whole numbers; 5.0 is one."""
    found = whole_number(value)
    if isinstance(found, float) and math.isfinite(found):
        raise ValueError("must be a whole number; round it, or search uniform")
    if isinstance(found, bool) or not isinstance(found, int):
        raise _no_number(found, "a whole number", f"{_BOUND}, such as 8")
    if abs(found) > MAX_SAMPLES:
        raise ValueError(f"{_BEYOND}; take a bound nearer to 0, or search log_uniform")
    return found


def two_bounds(value: object) -> object:
    """Both ends of a range, whatever they are."""
    if not isinstance(value, list):
        raise ValueError(f"must be a list of two bounds; write [low, high]{_seen(value)}")
    if len(value) != 2:
        raise ValueError(
            f"must be a list of two bounds, and this one has {len(value)}; write [low, high]{_seen(value)}"
        )
    return value


def option(value: object) -> object:
    """One of a choice's values."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number; leave it out, or write it as a text")
    if isinstance(value, int) and abs(value) > MAX_SAMPLES:
        raise ValueError(f"{_BEYOND}; write it as a text")
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        told = f"has {len(value):,} characters, more than {MAX_CHARACTERS:,}"
        raise ValueError(f"{told}; choose among short names that your code looks up")
    return _plain(value, "search its parts by their paths, or choose among names that your code looks up")


def options(value: object) -> object:
    """All of a choice's values, whatever they are."""
    if not isinstance(value, list):
        raise ValueError(f"must be a list; write its values as in [32, 64]{_seen(value)}")
    if not value:
        raise ValueError(f"lists nothing to choose from; give at least one value, as in [32, 64]{_seen(value)}")
    if len(value) > MAX_CHOICES:
        told = f"lists {len(value):,} values, more than {MAX_CHOICES:,}"
        raise ValueError(f"{told}; leave some out, or search a range with int or uniform")
    return value


def condition(value: object) -> object:
    """What another parameter must be."""
    remedy = "write the one value for which this is searched"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be a finite number; {remedy}")
    return _plain(value, remedy)


def _number(value: object, remedy: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _no_number(value, "a number", remedy)
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ValueError(f"must be a finite number; {remedy}")
    return value


def _no_number(value: object, wanted: str, remedy: str) -> ValueError:
    if isinstance(value, float):
        return ValueError(f"must be {wanted}, and finite; {remedy}")
    if isinstance(value, bool):
        return ValueError(f"must be {wanted}, neither true nor false; {remedy}")
    if isinstance(value, str) and _reads_as_number(value):
        return ValueError(f"must be {wanted}; a number is written without quotes")
    return ValueError(f"must be {wanted}; {remedy}{_seen(value)}")


def _reads_as_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _plain(value: object, remedy: str) -> object:
    if isinstance(value, dict | list):
        kind = "list" if isinstance(value, list) else "mapping"
        raise ValueError(f"must be a number, a text, true, false or null, not a {kind}; {remedy}{_seen(value)}")
    return value


def _seen(value: object) -> str:
    """Of what the problem does not show by itself, an excerpt: it may be very long and very deep."""
    return f" (seen: {reprlib.repr(value)})" if isinstance(value, list | dict) else ""

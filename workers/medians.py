"""How far off the median of a few measurements may be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def relative_error(numbers: Sequence[float]) -> float:
    """The standard error of the median of ``numbers`` above 0, relative to it: 1.2533 sigma / sqrt(n).

    Sigma is from the absolute deviations, so that a measurement that waited for something spoils nothing.
    """
    middle = median(numbers)
    deviation = 1.4826 * median(abs(number - middle) for number in numbers)
    return float(1.2533 * deviation / len(numbers) ** 0.5 / middle)

"""How far off the middle of a few measurements may be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, stdev


def relative_error(numbers: Sequence[float]) -> float:
    """The standard error of the median of ``numbers`` above 0, relative to it: 1.2533 sigma / sqrt(n).

    Sigma is from the absolute deviations, so that a measurement that waited for something spoils nothing.
    """
    middle = median(numbers)
    deviation = 1.4826 * median(abs(number - middle) for number in numbers)
    return float(1.2533 * deviation / len(numbers) ** 0.5 / middle)


def error_of_mean(numbers: Sequence[float]) -> float:
    """The standard error of the mean of two or more ``numbers`` above 0, relative to it."""
    return float(stdev(numbers) / len(numbers) ** 0.5 / fmean(numbers))

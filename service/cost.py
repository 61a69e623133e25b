"""What a job cost: worker seconds by the prices in the settings. Pure.

Where workers may have CPUs instead of GPUs nobody counts which had what: each is priced as the dearer of both, so that
an amount is the most that it can have been.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.settings import Settings
from workers.spec_parts import Resources

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """For one CPU or GPU an hour; None where the settings have none."""

    cpu_hour: float | None
    gpu_hour: float | None
    currency: str

    @classmethod
    def of(cls, settings: Settings) -> Prices:
        """As set."""
        return cls(settings.price_cpu_hour, settings.price_gpu_hour, settings.currency)

    @property
    def are_set(self) -> bool:
        """Whether seconds can be turned into money."""
        return self.cpu_hour is not None or self.gpu_hour is not None


def amount(worker_s: float, resources: Resources, prices: Prices) -> float | None:
    """What ``worker_s`` seconds of workers with these resources cost; None as ``hourly_rate``."""
    rate = hourly_rate(resources, prices)
    return None if rate is None else round(worker_s / HOUR_S * rate, 6)


def hourly_rate(resources: Resources, prices: Prices) -> float | None:
    """What a worker with these resources costs in an hour, the dearest that there may be.

    None without prices, and for a job with GPUs without a price for them; CPUs without a price are
    free, since machines with GPUs are often priced by those alone.
    """
    if not prices.are_set:
        return None
    if resources.gpus and prices.gpu_hour is None:
        return None
    rates = [_rate(resources, prices)]
    if resources.cpus_instead is not None:
        rates.append(_rate(resources.without_gpu(), prices))
    return max(rates)


def is_upper_bound(resources: Resources, prices: Prices) -> bool:
    """Whether an amount may have been less, as it hangs on what each worker had."""
    if resources.cpus_instead is None or hourly_rate(resources, prices) is None:
        return False
    return _rate(resources, prices) != _rate(resources.without_gpu(), prices)


def _rate(resources: Resources, prices: Prices) -> float:
    return resources.cpus * (prices.cpu_hour or 0.0) + resources.gpus * (prices.gpu_hour or 0.0)

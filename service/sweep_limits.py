"""What a sweep has used of its limits. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from service.cost import Prices, amount, hourly_rate
from service.sweep_records import Promoted, RunsSpent, Spent, SweepView
from service.sweep_report import in_order_of_end
from tuning.limits import Used, limit_reached
from tuning.space import space_of
from tuning.spec import SweepSpec, trial_spec
from tuning.values import Params, PointKey, key_of
from workers.errors import FieldProblem
from workers.spec_parts import Resources

_PRICED = "resources."


def limit_of_ended(view: SweepView, prices: Prices) -> str | None:
    """Which limit would end a sweep that has ended at once if it went on, in words; None where none would."""
    spec, ended = view.sweep.spec, in_order_of_end(view.trials)
    spent = [Spent(params=trial.params, seconds=trial.seconds) for trial in view.trials]
    # Its clock stands still.
    used = used_by(spec, view.sweep.ran_s, spent, view.promoted, prices)
    return limit_reached(spec.limits, [trial.for_search() for trial in ended], spec.mode, used)


def used_by(spec: SweepSpec, ran_s: float, spent: Iterable[Spent], promoted: Promoted, prices: Prices) -> Used:
    """What a sweep has used that ran so long, with what its promotions did."""
    searched = None if spec.limits.cost is None else cost_of(spec, spent, prices)
    return Used(
        time_s=ran_s + promoted.time_s,
        cost=None if searched is None else searched + cost_of_runs(promoted.runs, prices),
        besides="the runs of its promotions" if promoted.time_s or promoted.runs else "",
    )


def cost_problem(spec: SweepSpec, prices: Prices) -> FieldProblem | None:
    """What is wrong with a limit of cost: trials without a price, or all of them free, would never reach it."""
    if spec.limits.cost is None:
        return None
    corners = list(space_of(spec.space).corners())
    decisive = corners if any(path.startswith(_PRICED) for path in spec.space) else corners[:1]
    wanted = [trial_spec(spec, 0, params).resources for params in decisive]
    rates = [hourly_rate(each, prices) for each in wanted]
    if None in rates:
        found = wanted[rates.index(None)]
        told = f"cannot be counted: GPUs have no price in the settings (seen: gpus={found.gpus:g})"
        return FieldProblem("/limits/cost", f"{spec.limits.cost:g} {told}; set price_gpu_hour, or use time_s")
    return None if any(rates) else _free(spec.limits.cost, wanted[-1], prices)


def _free(limit: float, asked: Resources, prices: Prices) -> FieldProblem:
    set_ones = {"price_cpu_hour": prices.cpu_hour, "price_gpu_hour": prices.gpu_hour}
    charged = ", ".join(f"{name}={price:g} {prices.currency}" for name, price in set_ones.items() if price is not None)
    remedy = "price_gpu_hour" if asked.gpus else "price_cpu_hour"
    told = (
        f"{limit:g} can never be reached: the settings charge {charged}, and a worker of this job has "
        f"cpus={asked.cpus:g}, gpus={asked.gpus:g}, which costs nothing; set {remedy} above 0, or use time_s"
    )
    return FieldProblem("/limits/cost", told)


def cost_of(spec: SweepSpec, spent: Iterable[Spent], prices: Prices) -> float | None:
    """What trials have cost so far, None without prices. Asked every second: each price is looked up once."""
    seconds: defaultdict[PointKey, float] = defaultdict(float)
    shared: dict[PointKey, Params] = {}
    for each in spent:
        key = key_of({path: value for path, value in each.params.items() if path.startswith(_PRICED)})
        seconds[key] += each.seconds
        shared.setdefault(key, each.params)
    amounts = [amount(seconds[key], trial_spec(spec, 0, shared[key]).resources, prices) for key in seconds]
    return None if None in amounts else sum(cost for cost in amounts if cost is not None)


def cost_of_runs(runs: Iterable[RunsSpent], prices: Prices) -> float:
    """What runs of promotions have cost, as far as they have a price.

    One that is in use may have none. What trials cost is limited all the same.
    """
    return sum(amount(each.seconds, each.resources, prices) or 0.0 for each in runs)

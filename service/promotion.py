"""Deciding about a promotion: who is compared, which run is next, what it comes to. Pure.

All follows from the rows, so whoever comes after a crash decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean

from service.cost import Prices, hourly_rate, is_upper_bound
from service.finalists import finalist, outdated, overtaken, point_in_use
from service.promotion_records import (
    BETTER,
    CHEAPER,
    INCUMBENT,
    Contender,
    Contest,
    End,
    Evidence,
    PromotionRow,
    PromotionRun,
    PromotionState,
    PromotionView,
    Step,
    lasted_s,
)
from service.sweep_limits import cost_of, cost_of_runs
from service.sweep_records import ENDED_SWEEPS, RunsSpent, Spent
from tuning.limits import Used, limit_reached
from tuning.promote import (
    Better,
    Cheaper,
    Comparison,
    Incomparable,
    LookAgain,
    NotDistinguishable,
    Runs,
    finalists,
    judge,
)
from tuning.promotion_plan import LOOKS
from tuning.pruning import rungs_for
from tuning.seeds import fresh_seeds, seed_of
from workers.spec_parts import Resources


def contest_of(view: PromotionView) -> Contest:
    """The incumbent against the best trials that differ from it, on seeds that nobody has trained with."""
    spec, name = view.sweep.spec, view.sweep.promote_to
    if spec.population is not None:
        return Contest(refusal=f"{spec.population} changes values on the way, so what it found is no point")
    configuration = view.configuration
    if configuration is None:
        told = f"there is no configuration {name!r} any more; put one, and promote again"
        return Contest(refusal=told)
    if refusal := outdated(view.sweep, view.trials, configuration):
        return Contest(refusal=refusal)
    incumbent = Contender(number=INCUMBENT, params={}, job=configuration.document)
    point = point_in_use(spec, configuration)
    trials = [trial.for_search() for trial in view.trials]
    chosen = finalists(trials, spec.mode, point, rungs_for(spec, view.samples_per_epoch))
    if not chosen:
        told = "no trial is complete that differs from the configuration, so there is nothing to compare"
        return Contest(refusal=f"{told}; extend the sweep, and promote again")
    number = 1 if view.promotion is None else view.promotion.number + 1
    searched = (trial.params.get("seed") for trial in trials)
    own = (spec.job.get("seed"), configuration.document["seed"], *searched)
    used = {*view.seeds, *(seed for seed in own if isinstance(seed, int))}
    return Contest(
        contenders=(incumbent, *(finalist(spec, trial.number, trial.params, configuration) for trial in chosen)),
        seeds=fresh_seeds(seed_of(spec.seed, number), LOOKS[-1], used),
    )


def step_of(view: PromotionView, prices: Prices, now_s: float) -> Step:
    """What is to be done about the latest promotion now."""
    promotion = view.promotion
    assert promotion is not None, view.sweep.id
    going_on = tuple(run for run in view.runs if run.can_cancel)
    if promotion.state is not PromotionState.RUNNING:
        return Step(cancel=going_on)
    if (interruption := _interrupted(view, promotion, prices, now_s)) is not None:
        return Step(cancel=going_on, end=interruption)
    priced = _prices_of(promotion, prices)
    runs = {
        contender.number: _judged(_runs_of(contender.number, view.runs), priced.get(contender.number))
        for contender in promotion.contenders
    }
    incumbent = runs.pop(INCUMBENT)
    verdict = judge(incumbent, runs, view.sweep.spec.mode)
    match verdict:
        case LookAgain():
            return _next_runs(view, promotion, (INCUMBENT, *verdict.finalists), verdict.num_pairs)
        case Better():
            told = f"trial {verdict.number} is better"
            return Step(cancel=going_on, end=_replacing(view, promotion, verdict, told))
        case Cheaper():
            told = f"not distinguishable: {verdict.reason}; trial {verdict.number} is as good and cheaper"
            return Step(cancel=going_on, end=_replacing(view, promotion, verdict, told))
        case NotDistinguishable():
            told = f"not distinguishable: {verdict.reason}"
            evidence = _evidence(view, promotion, verdict.evidence)
            return Step(cancel=going_on, end=End(state=PromotionState.KEPT, reason=told, evidence=evidence))
        case Incomparable():
            told = f"{verdict.reason}, so nothing can be compared; see to the cause in its runs, and promote again"
            evidence = _evidence(view, promotion, verdict.evidence)
            return Step(cancel=going_on, end=End(state=PromotionState.FAILED, reason=told, evidence=evidence))


def _replacing(view: PromotionView, promotion: PromotionRow, verdict: Better | Cheaper, told: str) -> End:
    winner = next(c for c in promotion.contenders if c.number == verdict.number)
    evidence = _evidence(view, promotion, verdict.evidence, verdict)
    return End(state=PromotionState.PROMOTED, reason=told, winner=winner, evidence=evidence)


def _interrupted(view: PromotionView, promotion: PromotionRow, prices: Prices, now_s: float) -> End | None:
    if view.sweep.state not in ENDED_SWEEPS:
        return End(state=PromotionState.STOPPED, reason="the sweep goes on")
    if told := overtaken(view.sweep, view.trials, promotion, view.configuration):
        return End(state=PromotionState.FAILED, reason=told)
    limits = view.sweep.spec.limits.model_copy(update={"trials_without_improvement": None})
    all_of_it = (*(each.promotion for each in view.earlier), promotion)
    time_s = view.sweep.time_s(now_s) + sum(lasted_s(of.created_at, of.finished_at, now_s) for of in all_of_it)
    counted = "the runs of all its promotions" if view.earlier else "these runs"
    used = Used(time_s=time_s, cost=_cost(view, promotion, prices), besides=counted)
    reached = limit_reached(limits, [], view.sweep.spec.mode, used)
    return None if reached is None else End(state=PromotionState.STOPPED, reason=reached)


def _cost(view: PromotionView, promotion: PromotionRow, prices: Prices) -> float | None:
    spec = view.sweep.spec
    if spec.limits.cost is None:
        return None
    searched = cost_of(spec, [Spent(params=trial.params, seconds=trial.seconds) for trial in view.trials], prices)
    compared: list[RunsSpent] = []
    for of, runs in ((promotion, view.runs), *((each.promotion, each.runs) for each in view.earlier)):
        resources = {c.number: Resources.model_validate(c.job["resources"]) for c in of.contenders}
        compared += [RunsSpent(resources=resources[run.contender], seconds=run.seconds) for run in runs]
    return None if searched is None else searched + cost_of_runs(compared, prices)


def _prices_of(promotion: PromotionRow, prices: Prices) -> dict[int, float]:
    """What a second of a worker of each contender costs, in a unit that they share; empty where nothing tells.

    Nor does a rate of 0, that of CPUs where only GPUs have a price: whatever moved to them would be free.
    """
    wanted = {c.number: Resources.model_validate(c.job["resources"]) for c in promotion.contenders}
    if len({(each.cpus, each.gpus, each.cpus_instead) for each in wanted.values()}) == 1:
        return dict.fromkeys(wanted, 1.0)
    rates = {number: hourly_rate(each, prices) for number, each in wanted.items()}
    known = {number: rate for number, rate in rates.items() if rate}
    is_exact = not any(is_upper_bound(each, prices) for each in wanted.values())
    return known if is_exact and len(known) == len(rates) else {}


def _runs_of(contender: int, runs: Sequence[PromotionRun]) -> list[PromotionRun]:
    """In the order of their pairs, until the first that has not ended."""
    ended = {run.pair: run for run in runs if run.contender == contender and not run.is_open}
    found: list[PromotionRun] = []
    while len(found) in ended:
        found.append(ended[len(found)])
    return found


def _judged(found: Sequence[PromotionRun], price: float | None) -> Runs:
    costs = () if price is None else tuple(run.seconds * price for run in found)
    return Runs(scores=tuple(run.score for run in found), costs=costs)


def _next_runs(view: PromotionView, promotion: PromotionRow, wanted: Sequence[int], num_pairs: int) -> Step:
    """Pair by pair, no more at once than trials were; of who is out of it nothing goes on.

    Within a pair in an order of chance, which its seed decides: who is always the first finds other places and
    processes than who is always the last, and would cost less for that.
    """
    known = {(run.contender, run.pair) for run in view.runs}
    seeds = enumerate(promotion.seeds[:num_pairs])
    order = [(number, pair) for pair, seed in seeds for number in sorted(wanted, key=lambda n: seed_of(seed, n))]
    missing = [each for each in order if each not in known]
    left_over = tuple(run for run in view.runs if run.can_cancel and run.contender not in wanted)
    room = max(0, view.sweep.spec.parallel - sum(run.is_open for run in view.runs))
    return Step(start=tuple(missing[:room]), cancel=left_over)


def _evidence(
    view: PromotionView,
    promotion: PromotionRow,
    compared: Sequence[Comparison],
    replacing: Better | Cheaper | None = None,
) -> Evidence:
    by_number = {comparison.number: comparison for comparison in compared}
    told = []
    for contender in promotion.contenders:
        runs = _runs_of(contender.number, view.runs)
        scores = [run.score for run in runs if run.score is not None]
        found = by_number.get(contender.number)
        measured = {key: value for key, value in asdict(found).items() if key != "number"} if found else {}
        told.append(
            {
                "trial": None if contender.number == INCUMBENT else contender.number,
                "params": dict(contender.params),
                "mean": fmean(scores) if scores else None,
                "worker_s": round(fmean(run.seconds for run in runs), 3) if runs else 0.0,
                "num_runs": len(scores),
                **measured,
            }
        )
    spec = view.sweep.spec
    return {
        "sweep_id": view.sweep.id,
        "metric": spec.metric,
        "mode": spec.mode,
        "trial": None if replacing is None else replacing.number,
        "because": None if replacing is None else CHEAPER if isinstance(replacing, Cheaper) else BETTER,
        "incumbent": told[0],
        "finalists": told[1:],
    }

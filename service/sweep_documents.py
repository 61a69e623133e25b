"""Sweeps, their trials and what a sweep will cost as users see them, from the store's records. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from service.configuration_records import ConfigurationRow
from service.cost import Prices, amount, is_upper_bound
from service.documents import Document
from service.finalists import point_in_use
from service.promotion_documents import promotion_document
from service.store.sweeps import Standing
from service.sweep_records import ENDED_SWEEPS, Experience, SweepRow, TrialRow
from service.times import rfc3339
from tuning.estimate import Estimate, estimate
from tuning.lengths import drawn_range, total_range
from tuning.promotion_plan import num_runs
from tuning.space import space_of
from tuning.spec import SweepSpec
from tuning.trial import last_value
from workers.spec_parts import Resources


def sweep_document(row: SweepRow, standing: Standing) -> Document:
    """The sweep; its spec has the number of trials that it may have by now.

    ``trials`` sum up to their total: those that are still to be started are waiting.
    """
    counts = standing.counts
    total = counts.total if row.state in ENDED_SWEEPS else max(counts.total, most_trials(row))
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "reason": row.reason,
        "spec": {**row.document, "trials": row.num_trials},
        "configuration": None if row.origin is None else {"name": row.origin.name, "version": row.origin.version},
        "best": None if standing.best is None else best_document(standing.best),
        "trials": {
            "total": total,
            "waiting": counts.waiting + total - counts.total,
            "running": counts.running,
            "complete": counts.complete,
            "pruned": counts.pruned,
            "failed": counts.failed,
        },
        "promotion": promotion_document(row, standing.promotion),
        "created_at": rfc3339(row.created_at),
        "finished_at": rfc3339(row.finished_at),
        "etag": row.etag,
    }


def most_trials(row: SweepRow) -> int:
    """How many trials there can be: what is allowed, as far as the space has points."""
    count = space_of(row.spec.space).count()
    return row.num_trials if count is None else min(row.num_trials, count)


def best_document(trial: TrialRow) -> Document:
    """The best trial that is complete; of a sweep that was ended before any was, as ``best_of_unfinished``."""
    return {"trial": trial.number, "value": trial.value, "params": dict(trial.params), "job_id": trial.job_id}


def trial_document(trial: TrialRow) -> Document:
    """One trial; ``last_value`` is what it reported last, None where that is no number, ``value`` its result."""
    return {
        "number": trial.number,
        "state": trial.state,
        "params": dict(trial.params),
        "value": trial.value,
        "last_value": last_value(trial.reports),
        "samples": trial.samples,
        "worker_s": round(trial.seconds, 3),
        "job_id": trial.job_id,
        "reason": trial.reason,
        "started_at": rfc3339(trial.started_at),
        "finished_at": rfc3339(trial.finished_at),
    }


def estimate_document(
    spec: SweepSpec,
    known: Experience,
    resources: Resources,
    prices: Prices,
    configuration: ConfigurationRow | None = None,
) -> Document:
    """What a sweep will cost; ``resources`` are those of one of its workers.

    ``configuration`` is the one that its winner is to be held against.
    """
    has_incumbent = configuration is not None and point_in_use(spec, configuration) is not None
    totals = drawn_range(spec, known.samples_per_epoch)
    speed = known.samples_per_worker_s
    found = [estimate(spec, total, speed, has_incumbent=has_incumbent) for total in totals or ()]
    low, high = found or (None, None)
    samples = (
        (low.samples_low + low.confirm_samples_low, high.samples_high + high.confirm_samples_high)
        if low and high
        else (None, None)
    )
    worker_s = (found[0].worker_s_low, found[1].worker_s_high) if found else (None, None)
    is_one_price = not any(path.startswith("resources.") for path in spec.space)
    amounts = [amount(each, resources, prices) if each is not None and is_one_price else None for each in worker_s]
    count = space_of(spec.space).count()
    num_trials = spec.trials if count is None else min(spec.trials, count)
    return {
        "trials": num_trials,
        "samples": _bounds(*samples),
        "promotion_samples": _bounds(*_promotion_samples(found)) if spec.promote else None,
        "worker_s": _bounds(*worker_s),
        "amount": _bounds(*amounts),
        "currency": prices.currency,
        "notes": [
            *_notes(spec, known),
            *_promotion_notes(spec, num_trials, has_incumbent=has_incumbent),
            *_limit_notes(spec.limits.cost, *amounts),
            *(_price_notes(spec, resources, prices) if is_one_price else ()),
        ],
    }


def _notes(spec: SweepSpec, known: Experience) -> list[str]:
    """What the figures rest on, or lack."""
    notes = ["the low figures hold if pruning is as sharp as it can be, the high ones if nothing is pruned"]
    if total_range(spec, None) is None and known.samples_per_epoch is None:
        notes.append(
            "the size of an epoch is not known before a job of this code with `epochs` has run; the first trial tells "
            "it, and a job with samples instead of epochs needs no such figure"
        )
    elif total_range(spec, None) is None:
        notes.append(
            f"an epoch is taken to have {known.samples_per_epoch:,} samples, as in an earlier job of this code"
        )
    counted, drawn = (found or (0, 0) for found in (total_range(spec, 1), drawn_range(spec, 1)))
    if drawn != counted:
        notes.append(
            f"with adascale up to {drawn[1] / counted[1]:.3g} times as many samples are drawn as count, where larger "
            "batches turn out to be worth no more than optimizer.base_batch: the high figures count them"
        )
    if known.samples_per_worker_s is None:
        notes.append("no job of this code has run yet, so its speed is not known")
    else:
        jobs = "1 earlier job" if known.num_jobs == 1 else f"{known.num_jobs} earlier jobs"
        speed = f"{known.samples_per_worker_s:,.0f} samples a second"
        notes.append(f"one worker did {speed} in {jobs} of this code, waiting and starting counted")
    return notes


def _promotion_notes(spec: SweepSpec, num_trials: int, *, has_incumbent: bool) -> list[str]:
    if spec.promote is None:
        return []
    fewest, most = num_runs(num_trials, has_incumbent=has_incumbent)
    if not most:
        return [f"nothing can be promoted: the one trial is {spec.promote} itself; allow more trials"]
    notes = [f"promoting to {spec.promote} trains {fewest} to {most} times more, which is counted here"]
    limits = [f"limits.{name}" for name in ("time_s", "cost") if getattr(spec.limits, name) is not None]
    if limits:
        told = " and ".join(limits)
        notes.append(f"that counts against {told}, too: a sweep that one of these limits ends promotes nothing")
    return notes


def _limit_notes(limit: float | None, low: float | None, high: float | None) -> list[str]:
    """What a limit of cost does to the figures, which are of all trials."""
    if limit is None or low is None or high is None or high <= limit:
        return []
    if low > limit:
        return [f"limits.cost={limit:g} is less than even the low amount, so it would end the sweep with trials left"]
    return [f"limits.cost={limit:g} is less than the high amount, so it may end the sweep with trials left"]


def _price_notes(spec: SweepSpec, resources: Resources, prices: Prices) -> list[str]:
    if not is_upper_bound(resources, prices):
        return []
    limit = "" if spec.limits.cost is None else ", and so does limits.cost"
    return [
        f"the amounts take each worker for the dearer of one with a GPU and one with CPUs instead{limit}: it may cost "
        "less than the low figure"
    ]


def _promotion_samples(found: Sequence[Estimate]) -> tuple[int | None, int | None]:
    """Of the samples those that hold the winner against the configuration."""
    return (found[0].confirm_samples_low, found[1].confirm_samples_high) if found else (None, None)


def _bounds(low: float | None, high: float | None) -> Document | None:
    return None if low is None or high is None else {"low": round(low, 6), "high": round(high, 6)}

"""The documents about sweeps as types, for ``/openapi.json`` and the tests."""

from __future__ import annotations

from typing import Literal

from service.api.shapes import CostShape, Shape
from service.promotion_records import PromotionState
from service.sweep_records import SweepState
from tuning.spec import SweepSpec
from tuning.spec_parts import Mode
from tuning.trial import TrialState
from tuning.values import Scalar


class Best(Shape):
    """The best trial that is complete.

    Of a sweep that a limit or a person ended before any was, the best at the furthest rung, with its value there.
    """

    trial: int
    value: float
    params: dict[str, Scalar]
    job_id: str


class TrialNumbers(Shape):
    """They sum up to ``total``; those that are still to be started are waiting."""

    total: int
    waiting: int
    running: int
    complete: int
    pruned: int
    failed: int


class OriginShape(Shape):
    """The configuration that a sweep's job was taken from, as it was then."""

    name: str
    version: int


class ContenderShape(Shape):
    """A finalist, or the incumbent with ``trial`` null, in the new runs; what compares it with the incumbent.

    ``effect`` is relative to the incumbent's mean, above 0 better, and lies between ``low`` and ``high`` with 90 %;
    ``saving`` is the share of the incumbent's cost that it saves, null where their costs cannot be compared.
    """

    trial: int | None
    params: dict[str, Scalar]
    mean: float | None = None
    worker_s: float | None = None
    num_runs: int | None = None
    num_pairs: int | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    better_fraction: float | None = None
    saving: float | None = None
    cheaper_p_value: float | None = None


class RunNumbers(Shape):
    """Of the runs that compare."""

    started: int
    ended: int


class PromotionShape(Shape):
    """Its best trials against a configuration; ``version`` is what that became, with ``trial``.

    That is ``because`` it is better, or as good and cheaper. ``number`` counts those of a sweep, null until it begins.
    ``current_version`` is the configuration's by now, whoever changed it since; null until it begins, and where the
    configuration is gone.
    """

    number: int | None
    configuration: str
    state: PromotionState
    reason: str | None
    base_version: int | None
    version: int | None
    current_version: int | None
    trial: int | None
    because: Literal["better", "cheaper"] | None
    runs: RunNumbers
    worker_s: float
    incumbent: ContenderShape | None
    finalists: list[ContenderShape]
    created_at: str | None
    finished_at: str | None


class Sweep(Shape):
    """A sweep; the number of trials in its spec is the one that holds now."""

    id: str
    name: str
    state: SweepState
    reason: str | None
    spec: SweepSpec
    configuration: OriginShape | None
    best: Best | None
    trials: TrialNumbers
    promotion: PromotionShape | None
    created_at: str
    finished_at: str | None
    etag: str


class SweepList(Shape):
    """One page, newest first."""

    sweeps: list[Sweep]
    next_page_token: str | None


class SweepTrial(Shape):
    """A trial; ``last_value`` is what it reported last, ``value`` its result."""

    number: int
    state: TrialState
    params: dict[str, Scalar]
    value: float | None
    last_value: float | None
    samples: int
    worker_s: float
    job_id: str
    reason: str | None
    started_at: str | None
    finished_at: str | None


class SweepTrials(Shape):
    """One page, by number."""

    trials: list[SweepTrial]
    next_page_token: str | None


class Bounds(Shape):
    """If pruning is as sharp as it can be, and if nothing is pruned."""

    low: float
    high: float


class SweepEstimate(Shape):
    """What a sweep would cost; null where it is not known."""

    trials: int
    samples: Bounds | None
    promotion_samples: Bounds | None
    worker_s: Bounds | None
    amount: Bounds | None
    currency: str
    notes: list[str]


class BestSoFar(Shape):
    """How things stood when a trial had ended; samples and seconds are those of all trials until then."""

    trial: int
    best: float | None
    samples: int
    worker_s: float


class Improvement(Shape):
    """A better value, by how much, and what all trials cost since the one before."""

    trial: int
    value: float
    gain: float | None
    worker_s: float
    amount: float | None


class LrBatch(Shape):
    """A trial that has ended in the map of learning rate (at the base batch) against global batch."""

    trial: int
    lr: float
    global_batch: int
    value: float | None
    state: TrialState


class Rung(Shape):
    """Where trials are compared: how many came there, wait there, were ended there; the best value there."""

    samples: int
    reached: int
    waiting: int
    pruned: int
    best: float | None


class Stage(Shape):
    """With what the state of the best trial was trained from so many samples on, and by which trial."""

    trial: int
    samples: int
    params: dict[str, Scalar]


class SweepReport(Shape):
    """What a sweep found so far; ``caution`` says why its best value is not to be expected again.

    ``schedule`` is empty unless a population changed the best trial while it ran. ``importance`` is that of trials as
    they stood after ``importance_at`` samples, null for at their ends.
    """

    sweep_id: str
    name: str
    state: SweepState
    metric: str
    mode: Mode
    best: Best | None
    caution: str | None
    schedule: list[Stage]
    best_so_far: list[BestSoFar]
    improvements: list[Improvement]
    importance: dict[str, float]
    importance_at: int | None
    lr_batch: list[LrBatch]
    rungs: list[Rung]
    cost: CostShape
    promotion: PromotionShape | None

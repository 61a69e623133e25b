"""What workers measure of their own work, and what a controller foresees by it: seconds, memory, throughput."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from workers.medians import relative_error
from workers.plan import PlanId

COMPARED = "compared"
"""The key of a timeline row's ``after`` under which a ``Compared`` stands, as a mapping."""

FILL = 0.9
"""The share of the free memory that passes may be expected to take; the rest is for what a fit does not see."""

_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpan:
    """What the rounds of ``width_s`` seconds cost one worker under one rank; ``begin`` is Unix seconds.

    Seconds are sums over its ``num_rounds`` committed rounds: ``step_s`` from commit to commit, the others this
    worker's own parts of it. ``memory_bytes`` is the most seen, ``gpu_utilisation`` the mean of the rounds.
    A span grows until its time is over; the one with more rounds replaces the other.
    """

    worker_id: str
    rank: int
    begin: int
    width_s: int
    num_rounds: int
    step_s: float
    data_s: float
    compute_s: float
    exposed_s: float
    optimizer_s: float
    memory_bytes: int
    gpu_utilisation: float | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.worker_id, self.rank, self.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """A run of rounds in which one worker had the same part: what such a part costs it by itself.

    ``n`` counts a worker's runs from 1. ``samples`` is its part of a round, ``seconds`` the median of ``num_rounds``
    committed rounds: fetching and computing, without waits for others. ``tokens`` are what the part had in the mean, 0
    where samples have no lengths; ``seconds`` are what the median round would have taken with so many. ``exchange_s``
    is the median of what gradients took from the first bucket on, ``exposed_s`` of what this worker waited of it, for
    others as well, ``wire_s`` of what the link was at work of it, ``backward_s`` of the backward pass that it could be
    hidden by, ``codec_s`` of encoding and decoding; None where the host does not see that.
    """

    n: int
    plan_id: PlanId
    samples: int
    num_rounds: int
    seconds: float
    tokens: float = 0.0
    exchange_s: float = 0.0
    exposed_s: float = 0.0
    wire_s: float | None = None
    backward_s: float | None = None
    codec_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeCost:
    """What an exchange scheme costs a worker: bytes a value on the wire, seconds of encoding and decoding a million."""

    bytes_a_value: float
    seconds_a_million: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPass:
    """Samples of the largest forward pass that a worker went into, and of the largest that it ``passed``, 0 for none.

    The two are one where it was in none larger when it ended.
    """

    size: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """What a worker learned by building the task.

    ``device_seconds`` maps number formats to measured seconds of one fixed layer, forward and backward, on this
    worker's device (the table that ``precision: auto`` decides by). ``schemes`` are what exchange schemes cost it,
    by name, and ``buckets`` what they may be cut into, as shares of all by mebibytes of a bucket, where
    ``communication`` is to be chosen by that; ``num_trained`` are the numbers whose gradients travel, of so many bytes
    each where they go as they are.
    ``rack`` is what its node's label says, empty without one. ``last_passes`` are what other workers of the attempt
    have left on its node, by id.
    """

    num_train: int
    num_eval: int
    num_parameters: int
    total_samples: int
    device: str
    device_seconds: Mapping[str, float]
    node_id: str
    pid: int
    schemes: Mapping[str, SchemeCost] = field(default_factory=dict)
    buckets: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    num_trained: int = 0
    gradient_bytes: float = 4.0
    rack: str = ""
    last_passes: Mapping[str, LastPass] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two ways that a worker tried in turns: the seconds that a ``unit`` (sample, token) took by each.

    ``after_s`` is the one in force from then on. ``errors`` are standard errors relative to them; None with fewer than
    three rounds of either, of ``num_rounds`` in all.
    """

    unit: str
    before_s: float
    after_s: float
    errors: tuple[float, float] | None
    num_rounds: int


def compared(
    unit: str,
    before: Sequence[float],
    after: Sequence[float],
    figure: Callable[[Sequence[float]], float] = median,
    error: Callable[[Sequence[float]], float] | None = relative_error,
) -> Compared | None:
    """By the ``figure`` of the seconds a ``unit`` took in each round, all above 0; None where a way was not measured.

    It is what the choice was made by, and ``error`` how far it may be off, where that can be told.
    """
    if not before or not after:
        return None
    is_enough = min(len(before), len(after)) >= _LEAST_ROUNDS
    return Compared(
        unit=unit,
        before_s=figure(before),
        after_s=figure(after),
        errors=(error(before), error(after)) if is_enough and error is not None else None,
        num_rounds=len(before) + len(after),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroChange:
    """From ``time`` on a worker's forward passes have ``after`` samples: as memory ran out, or as it is faster.

    ``n`` counts a worker's changes; ``before`` is None where it is the first that was settled on. Sizes are in samples,
    or in tokens where that is the ``unit``. ``seconds`` a sample by size, as far as they were measured; ``compared`` is
    what was chosen with the largest of these, or with what was in force. ``cost_s`` are the seconds that it took: by
    how much rounds in which others were tried were longer, or a pass that memory ran out in.
    """

    n: int
    before: int | None
    after: int
    reason: str
    time: float
    unit: str = "samples"
    seconds: Mapping[int, float] = field(default_factory=dict)
    compared: Compared | None = None
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of one worker's device in bytes: the most that it held since its micro-batch was settled, and may hold.

    A forward pass of n samples is expected to need ``fixed_bytes + sample_bytes * n`` in all, by the sizes that were
    tried; None where fewer than two were. ``limit_bytes`` is None where nobody can tell. Where samples have lengths all
    of it is by ``tokens``, which are those of the largest pass that was looked at lately, in place of samples.
    """

    peak_bytes: int
    limit_bytes: int | None = None
    fixed_bytes: int | None = None
    sample_bytes: float | None = None
    tokens: int | None = None

    @property
    def fitting(self) -> int | None:
        """How many samples of a pass are expected to fit; None where that is not known, or passes go by tokens."""
        if self.limit_bytes is None or self.fixed_bytes is None or not self.sample_bytes or self.tokens is not None:
            return None
        return max(1, int(FILL * max(0, self.limit_bytes - self.fixed_bytes) / self.sample_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Samples a second of a job at one size and batch; ``error`` is the standard deviation of their logarithm.

    ``measured`` is the median of the ``num_steps`` newest steps there, None where there was none.
    """

    num_workers: int
    global_batch: int
    samples_per_s: float
    error: float
    measured: float | None = None
    num_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A job's throughput by its number of workers at the batch in force, and by its batch at the size in force."""

    num_workers: int
    global_batch: int
    sizes: tuple[Prediction, ...]
    batches: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderChange:
    """From ``time`` on a worker's samples are read by ``after``: inline, by a thread beside it, or by processes.

    ``n`` counts a worker's changes. ``after`` is ``before`` where others were tried, and did not pay; ``compared`` are
    the two where it is not, and both were measured. ``cost_s`` are the seconds by which rounds in which others were
    tried were longer than by ``after``.
    """

    n: int
    before: str
    after: str
    reason: str
    time: float
    compared: Compared | None = None
    cost_s: float = 0.0

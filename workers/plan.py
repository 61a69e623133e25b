"""The Plan: everything adjustable about a running job, as one immutable, versioned value.

A plan holds from the first step boundary at which all members have agreed on it. Nothing else
changes a running job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from workers.errors import BatchSplitError
from workers.exchange_options import Options, filled, formats_of, name_of, options_of
from workers.lr import LrPlan
from workers.run_settings import Donor


class PlanId(NamedTuple):
    """Ordered: first by the controller's term, then by its own count."""

    term: int
    n: int


class Switch(StrEnum):
    """AGREED: from the boundary at which all members counted it. NOW: members left their round for it."""

    AGREED = "agreed"
    NOW = "now"


class Goal(StrEnum):
    """What members do under a plan."""

    TRAIN = "train"
    SAVE_AND_STOP = "save_and_stop"


class TimelineKind(StrEnum):
    """What a timeline row is about (contract, part 3)."""

    START = "start"
    RESIZE = "resize"
    WORKER_LOST = "worker_lost"
    WORKER_JOINED = "worker_joined"
    CONTROLLER_LOST = "controller_lost"
    RESTORE = "restore"
    CHECKPOINT = "checkpoint"
    BATCH = "batch"
    LR = "lr"
    PRECISION = "precision"
    EXCHANGE = "exchange"
    PROBATION = "probation"
    FAILURE = "failure"
    LIMIT = "limit"
    PAUSE = "pause"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker named by the plan.

    ``weight`` is its part of a global batch relative to the others'; 0 is legal (it adds zeros). ``rack`` is what its
    node's label says, empty without one.
    """

    worker_id: str
    rank: int
    weight: float = 1.0
    rack: str = ""


@dataclass(frozen=True, slots=True)
class FreshSource:
    """State as ``build`` made it at rank 0 (with the job's ``init_from`` applied, where it has one)."""


@dataclass(frozen=True, slots=True)
class MemberSource:
    """State in memory of the member that is furthest ahead; it has committed ``round`` rounds."""

    worker_id: str
    round: int


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """State of a checkpoint; ``path`` is its name in the job's checkpoint storage, ``cursor`` its samples.

    ``global_batch`` is the batch that the job had adapted to there, 0 where it goes on with what was asked for.
    """

    path: str
    step: int
    cursor: int
    global_batch: int = 0


Source: TypeAlias = FreshSource | MemberSource | CheckpointSource | Donor


class Format(StrEnum):
    """A number format for compute; master weights stay as the user made them."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """``why`` tells what ``auto`` resolved to and on which measurement."""

    format: Format = Format.FP32
    why: str = "asked for in the spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """How gradients travel. ``options`` are all that the scheme has, filled in and by name."""

    scheme: str = "none"
    options: Options = ()
    why: str = "asked for in the spec"

    @property
    def name(self) -> str:
        """The scheme, and the options that ``auto`` chooses (``workers.exchange_options.name_of``)."""
        return name_of(self.scheme, self.options)

    @property
    def num_steps(self) -> int:
        """Optimizer steps of a round."""
        steps = dict(self.options).get("steps", 1)
        return int(steps)

    @classmethod
    def named(cls, name: str, why: str) -> Exchange:
        """The exchange of this name, with the defaults of what it does not tell."""
        scheme = formats_of(name)[0]
        return cls(scheme=scheme, options=filled(scheme, dict(options_of(name))), why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Who changed the plan and why; timeline rows are derived from it.

    ``actor`` is ``user``, ``service``, ``controller`` or the name of an advisor.
    """

    kind: TimelineKind
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class FailureCount:
    """Failures of the user's code that were not healed: ``num`` of them, the last with ``cursor`` samples drawn.

    Of two counts the greater is the later one, so that a new controller goes on with what plans tell.
    """

    cursor: int = 0
    num: int = 0

    def after(self, cursor: int, healing_samples: int) -> FailureCount:
        """One more failure, with so many samples drawn at most; whoever got further by enough begins anew."""
        is_healed = cursor - self.cursor >= healing_samples
        return FailureCount(max(cursor, self.cursor), 1 if is_healed else self.num + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One version of everything adjustable.

    ``generation`` counts memberships of the process group: a plan with another generation than the one in force needs
    a rendezvous first, and its ``source`` tells whose state everyone takes. ``lineage`` counts starts and restores
    within the attempt; it changes only where state is taken from a checkpoint or a donor, or made afresh.
    ``global_batch`` is in samples; while it is on trial, ``judged_batch`` is the one before it, to which everyone
    goes back who does not know how the trial ends. ``most_micro`` is how many samples a forward pass may have, where
    workers were killed in larger ones; who came through such itself goes on so. ``settings`` is the number of the last
    order (``RunSettings.n``) that is carried out by it, 0 where all is as the spec has it. ``saves`` counts the
    checkpoints that were asked for: at the boundary where it grows, one is saved. ``until`` is a line in samples: the
    group evaluates and stands still after the step that crosses it, until a plan with another line.
    """

    id: PlanId
    switch: Switch
    goal: Goal = Goal.TRAIN
    generation: int
    lineage: int
    source: Source
    members: tuple[Member, ...]
    global_batch: int
    judged_batch: int | None = None
    most_micro: int | None = None
    lr: LrPlan
    settings: int = 0
    saves: int = 0
    until: int | None = None
    precision: Precision = Precision()
    exchange: Exchange = Exchange()
    cause: Cause
    failures: FailureCount = FailureCount()

    @property
    def num_members(self) -> int:
        return len(self.members)

    @property
    def parts(self) -> dict[str, int]:
        """Samples of a whole batch by worker id, in the order of the ranks. Raises BatchSplitError."""
        by_rank = sorted(self.members, key=lambda member: member.rank)
        sizes = split_batch(self.global_batch, [member.weight for member in by_rank])
        return {member.worker_id: size for member, size in zip(by_rank, sizes, strict=True)}

    @property
    def labels(self) -> tuple[str, ...]:
        """The racks of the members' nodes by rank, as labels say."""
        return tuple(member.rack for member in sorted(self.members, key=lambda member: member.rank))

    @property
    def worker_ids(self) -> tuple[str, ...]:
        return tuple(m.worker_id for m in self.members)

    def member(self, worker_id: str) -> Member | None:
        """The member that is this worker, or None when the plan leaves it out."""
        return next((m for m in self.members if m.worker_id == worker_id), None)


def split_batch(global_batch: int, weights: Sequence[float]) -> list[int]:
    """Split a global batch over ranks in proportion to their weights.

    Sizes are in samples; the parts sum to exactly ``global_batch``, so a resize never changes what
    one optimizer step means. Largest remainder, ties to the lower rank; a weight of 0 gives 0.
    A batch smaller than the number of ranks (the job's last may be) leaves some with 0.

    Raises BatchSplitError when a weight is negative or all are 0.
    """
    total = float(sum(weights))
    if total <= 0 or min(weights) < 0:
        raise BatchSplitError(
            f"weights={list(weights)} cannot share a batch; give each rank a weight of at least 0 and one above it"
        )
    exact = [global_batch * w / total for w in weights]
    sizes = [int(e) for e in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda r: (sizes[r] - exact[r], r))
    for r in by_remainder[: global_batch - sum(sizes)]:
        sizes[r] += 1
    return sizes


def none_at_zero(global_batch: int, weights: Sequence[float]) -> Sequence[float]:
    """Weights that leave no rank without a sample, where the batch has one for each: its speed is never seen again.

    The same ones where they leave none. Raises as ``split_batch``.
    """
    sizes = split_batch(global_batch, weights)
    if min(sizes) > 0 or global_batch < len(sizes):
        return weights
    for rank in [rank for rank, size in enumerate(sizes) if size == 0]:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[rank] = 1
    return [float(size) for size in sizes]

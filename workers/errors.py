"""The tree of errors, and failures as data.

A message has three parts: what is wrong, the value seen, what to do next. Exceptions that cross
Ray hand every field to ``super().__init__`` so that they survive pickling; what user code raised
travels as a ``Failure`` and never as a pickled exception.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Reason(StrEnum):
    """Why a job is in its state (contract, part 4)."""

    USER_ERROR = "USER_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DIVERGED = "DIVERGED"
    BUNDLE_INVALID = "BUNDLE_INVALID"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    NO_CAPACITY = "NO_CAPACITY"
    NODE_LOST = "NODE_LOST"
    CLUSTER_LOST = "CLUSTER_LOST"
    PREEMPTED = "PREEMPTED"
    STALLED = "STALLED"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    CANCELLED_BY_USER = "CANCELLED_BY_USER"
    CANCELLED_BY_SWEEP = "CANCELLED_BY_SWEEP"
    CANCELLED_BY_SCHEDULE = "CANCELLED_BY_SCHEDULE"
    CONTROLLER_ERROR = "CONTROLLER_ERROR"


class JobError(Exception):
    """Root of the errors that a user may see; ``reason`` is what the job's state will say."""

    reason: ClassVar[Reason] = Reason.CONTROLLER_ERROR

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UserCodeError(JobError):
    """The user's code, or what it returned, is at fault."""

    reason = Reason.USER_ERROR


class EntrypointError(UserCodeError):
    """The entrypoint cannot be found, imported or called, or returns something unusable."""


class DataError(UserCodeError):
    """The dataset is empty, or a sample or batch cannot be used."""


class BatchSplitError(UserCodeError):
    """A global batch cannot be shared among the workers."""


class OutOfMemoryError(JobError):
    """What training needs does not fit into a worker's memory, be it with one sample at a time."""

    reason = Reason.OUT_OF_MEMORY


class DivergedError(JobError):
    """The loss stayed not finite for too many steps on end."""

    reason = Reason.DIVERGED


class ReplicaError(JobError):
    """A worker's state is not bit for bit that of the others; counted as the code's, as that is what can repeat it."""

    reason = Reason.USER_ERROR


class BundleError(JobError):
    """The archive of the user's code is refused."""

    reason = Reason.BUNDLE_INVALID


class DependencyError(JobError):
    """The job's dependencies cannot be installed."""

    reason = Reason.DEPENDENCY_FAILED


class CheckpointError(JobError):
    """A checkpoint is missing, incomplete or does not fit the model."""


class UnreadableError(CheckpointError):
    """The checkpoint that a plan begins from is missing or damaged, or its storage fails."""


class DonorError(JobError):
    """The state of another job cannot be taken over; the job's own is whole."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One fault of a document: ``pointer`` is a JSON Pointer (RFC 6901) to the field."""

    pointer: str
    detail: str


class SpecError(JobError):
    """A job spec is refused; ``problems`` names every faulty field.

    ``code`` is ``NOT_AVAILABLE`` when each problem is a value that is not built yet, else ``INVALID``.
    """

    def __init__(self, problems: Sequence[FieldProblem], code: str = "INVALID") -> None:
        super().__init__("; ".join(f"{p.pointer or '/'}: {p.detail}" for p in problems))
        self.problems = tuple(problems)
        self.code = code

    def __reduce__(self) -> tuple[type[SpecError], tuple[tuple[FieldProblem, ...], str]]:
        return (type(self), (self.problems, self.code))


class StaleTermError(JobError):
    """A call carries an older term than the one in office; its caller must end itself."""

    def __init__(self, seen: int, current: int) -> None:
        super().__init__(f"term {seen} was superseded by term {current}; this caller must stop")
        self.seen, self.current = seen, current

    def __reduce__(self) -> tuple[type[StaleTermError], tuple[int, int]]:
        return (type(self), (self.seen, self.current))


class ReturnedError(JobError):
    """A call is meant for a worker that has ended; its process serves another one by now, or waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as data: what a rank saw when it left a round or failed to start.

    ``round`` is the round that was being trained, None before training. ``traceback`` is the whole
    text, bounded by ``MAX_TRACEBACK_CHARS`` as the message is by ``MAX_MESSAGE_CHARS``; ``num_cut`` characters of
    both are left out. ``worker_id`` is empty where no worker is at fault. ``is_in_commit`` where that worker broke in
    mid-commit, which others may have brought to its end.
    """

    reason: Reason
    type: str
    message: str
    traceback: str = ""
    worker_id: str = ""
    rank: int | None = None
    round: int | None = None
    num_cut: int = 0
    is_in_commit: bool = False


MAX_TRACEBACK_CHARS = 64_000
MAX_MESSAGE_CHARS = 1_000


def failure_of(
    error: BaseException,
    *,
    worker_id: str = "",
    rank: int | None = None,
    round: int | None = None,
    blot: Callable[[str], str] = str,
) -> Failure:
    """Describe an exception as data; anything outside the tree counts as the user's code.

    ``blot`` takes secrets out of a text: before anything is cut, as a part of one would be found no more.
    """
    whole = blot("".join(traceback.format_exception(error)))
    # A text of a class of the user's own may give itself as its plain text, and nobody else could read that.
    told = str.__str__(blot(str(error) or type(error).__name__))
    message, text = _shortened(told, MAX_MESSAGE_CHARS), _shortened(whole, MAX_TRACEBACK_CHARS)
    return Failure(
        reason=error.reason if isinstance(error, JobError) else Reason.USER_ERROR,
        type=type(error).__name__,
        message=message,
        traceback=text,
        worker_id=worker_id,
        rank=rank,
        round=round,
        num_cut=max(0, len(told) - MAX_MESSAGE_CHARS) + max(0, len(whole) - MAX_TRACEBACK_CHARS),
    )


def described(error: BaseException) -> str:
    """``Type: message`` for the middle of a sentence; the type alone where there is no message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _shortened(text: str, max_chars: int) -> str:
    """Its beginning and its end, and between them how much is missing."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n... {len(text) - max_chars} characters cut ...\n{text[-half:]}"

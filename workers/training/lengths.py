"""How long samples are: asked of the task once for each sample of a dataset."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from workers.errors import DataError, JobError, described
from workers.training import memory
from workers.training.length_sources import LengthSource

MAX_LENGTH = 2**31 - 1
"""So that a micro-batch's tokens, with padding a product with a number of samples, are counted exactly."""

_NUM_BETWEEN_CHECKS = 64


class Lengths:
    """Lengths of a dataset's samples in tokens, learned as they are asked for.

    Every rank asks for all samples of a global batch and must come to the same answers, from which each takes its own
    part without a message. They are not exchanged: that would be a collective before the first gradient, in which one
    rank's bad sample holds all others. The price is that in the first epoch each rank reads each global batch whole,
    where samples are read for it.
    """

    def __init__(self, num_samples: int, source: LengthSource, max_tokens: int | None) -> None:
        self._source, self._max_tokens = source, max_tokens
        self._known_N = np.zeros(num_samples, dtype=np.int32)  # 0: not asked yet

    def of(self, indexes_N: NDArray[np.int64], check: Callable[[], None]) -> NDArray[np.int64]:
        """The lengths of these samples; ``check`` is called now and then, and may raise to leave.

        Changes the random generators. Raises DataError naming the sample that has no usable length, and whatever
        signals a lack of memory.
        """
        new = np.unique(indexes_N[self._known_N[indexes_N] == 0])
        for number, index in enumerate(new.tolist()):
            if number % _NUM_BETWEEN_CHECKS == 0:
                check()
            self._known_N[index] = self._asked(index)
        return self._known_N[indexes_N].astype(np.int64)

    def are_known(self, indexes_N: NDArray[np.int64], check: Callable[[], None]) -> bool:
        """Whether these can be told without reading a sample; one that has no usable length is told of by ``of``."""
        if not self._source.is_reading:
            with contextlib.suppress(DataError):
                self.of(indexes_N, check)
        return bool(self._known_N[indexes_N].all())

    def _asked(self, index: int) -> int:
        tell, place = self._source.ask(index), self._source.place(index)
        try:
            told = tell()
        except JobError:
            raise
        except (Exception, SystemExit) as error:
            if memory.is_out_of_memory(error):
                raise
            raise DataError(f"{place} raised {described(error)}; it must tell the tokens of any sample") from error
        length = checked_length(told, place)
        if self._max_tokens is not None and length > self._max_tokens:
            raise DataError(
                f"{place} is {length}, above batch.max_tokens={self._max_tokens}, so that the sample fits no "
                f"micro-batch; raise max_tokens to {length}, shorten the sample, or leave it out"
            )
        return length


def checked_length(told: object, place: str) -> int:
    """What ``length`` returned for a sample. Raises DataError where it is no number of tokens."""
    try:
        length = 0 if _is_truth(told) else operator.index(told)  # type: ignore[arg-type]  # what is no number is told
    except (TypeError, ValueError, RuntimeError):
        length = 0
    if not 0 < length <= MAX_LENGTH:
        raise DataError(
            f"{place} returned {told!r:.80}; return the sample's number of tokens as an int from 1 to {MAX_LENGTH}, "
            "or leave the sample out"
        )
    return length


def _is_truth(told: object) -> bool:
    """Whether it is one of Python's, numpy's or torch's booleans, which pass for whole numbers."""
    return isinstance(told, bool) or "bool" in str(getattr(told, "dtype", ""))

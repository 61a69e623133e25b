"""How long samples are: asked of the task's ``length`` once for each sample of a dataset."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import DataError, JobError, described
from workers.task import MapDataset
from workers.training import batching, data, memory

MAX_LENGTH = 2**31 - 1
"""So that a micro-batch's tokens, with padding a product with a number of samples, are counted exactly."""

_LENGTH_SEED = (1 << 40) + 1  # in the place of a round's number, as evaluation has 1 << 40
_NUM_BETWEEN_CHECKS = 64


class Lengths:
    """Lengths of a dataset's samples in tokens, learned as they are asked for; ``name`` is what the user calls it.

    Every rank asks for all samples of a global batch and must come to the same answers, from which each takes its own
    part without a message. They are not exchanged: that would be a collective before the first gradient, in which one
    rank's bad sample holds all others. The price is that in the first epoch each rank reads each global batch whole.
    A sample is read under a seed of its own index, so that random data have one length on all ranks.
    """

    def __init__(
        self,
        dataset: MapDataset,
        length: Callable[[Any], int],
        max_tokens: int | None,
        seed: int,
        name: str,
        turnstile: batching.Turnstile | None = None,
    ) -> None:
        self._turnstile = turnstile or batching.Turnstile()
        self._dataset, self._length, self._max_tokens = dataset, length, max_tokens
        self._seed, self._name = seed, name
        self._known_N = np.zeros(len(dataset), dtype=np.int32)  # 0: not asked yet

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

    def are_known(self, indexes_N: NDArray[np.int64]) -> bool:
        """Whether these can be told without reading a sample."""
        return bool(self._known_N[indexes_N].all())

    def _asked(self, index: int) -> int:
        batching.seed_all(self._seed, _LENGTH_SEED, index)
        at = self._turnstile.place
        with self._turnstile.lock, at.reading(self._name):
            (sample,) = data.fetch(self._dataset, [index], self._name, memory.is_out_of_memory, at.note)
        place = f"length({self._name}[{index}])"
        try:
            told = self._length(sample)
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

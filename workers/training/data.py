"""The order of samples, and fetching them: each sample of an epoch exactly once, whoever trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

from workers.errors import DataError, JobError, described
from workers.task import MapDataset


class SampleOrder:
    """The endless stream of sample indexes: one permutation of the dataset an epoch, by (seed, epoch).

    A pure function of seed and position; nothing about workers or batch sizes enters.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        if num_samples <= 0:
            raise DataError(f"the dataset is empty ({num_samples} samples); give at least one sample")
        self.num_samples = num_samples
        self._seed = seed
        self._epochs: dict[int, NDArray[np.int64]] = {}

    def indexes(self, begin: int, end: int) -> NDArray[np.int64]:
        """The dataset's indexes at stream positions [begin, end), which may span epochs."""
        parts = []
        while begin < end:
            epoch, offset = divmod(begin, self.num_samples)
            part = self._epoch(epoch)[offset : offset + end - begin]
            parts.append(part)
            begin += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._epochs:
            if len(self._epochs) > 1:  # a batch spans two at most, or all of them where the dataset is tiny
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = np.random.Generator(np.random.PCG64([self._seed, epoch])).permutation(
                self.num_samples
            )
        return self._epochs[epoch]


def _unnoted(index: int) -> None:
    pass


def fetch(
    dataset: MapDataset,
    indexes: Sequence[int],
    name: str,
    is_fatal: Callable[[BaseException], bool],
    note: Callable[[int], None] = _unnoted,
) -> list[Any]:
    """The samples at ``indexes``, through the dataset's ``__getitems__`` where it has one.

    ``name`` is what the user calls the dataset. ``note`` is told which index is about to be read (the first, where
    they are read at once), so that one that hangs can be named. Errors for which ``is_fatal`` is true pass through.

    Raises DataError naming the sample that cannot be read.
    """
    many = _reads_many(dataset)
    index: object = f"{indexes[:8]}..." if len(indexes) > 8 else list(indexes)
    try:
        if many is not None:
            note(indexes[0] if indexes else -1)
            samples = list(many(list(indexes)))
        else:
            samples = []
            for index in indexes:  # the error below names the index at which it stopped
                note(index)
                samples.append(dataset[index])
    except (JobError, GeneratorExit):
        raise
    except (Exception, SystemExit) as error:
        if is_fatal(error):
            raise
        which, why = (many and _first_bad(dataset, indexes)) or (index, error)
        raise DataError(
            f"{name}[{which}] raised {described(why)}; correct the dataset or leave the sample out"
        ) from error
    if len(samples) != len(indexes):
        raise DataError(
            f"{name}.__getitems__ returned {len(samples)} samples for {len(indexes)} indexes; return one for each"
        )
    return samples


def _reads_many(dataset: object) -> Callable[[list[int]], Sequence[Any]] | None:
    """Its ``__getitems__``; torch's own Subset has one, and beneath it may be a dataset that reads one by one."""
    if type(dataset) is Subset and _reads_many(dataset.dataset) is None:
        return None
    many: Callable[[list[int]], Sequence[Any]] | None = getattr(dataset, "__getitems__", None)
    return many


def _first_bad(dataset: MapDataset, indexes: Sequence[int]) -> tuple[object, BaseException] | None:
    """The first sample that cannot be read by itself, and why; None where each can."""
    for index in indexes:
        try:
            dataset[index]
        except (Exception, SystemExit) as error:
            return index, error
    return None

"""From indexes to batches on the device, and from a part of the global batch to micro-batches."""

from __future__ import annotations

import copy
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from workers.errors import DataError, JobError, described
from workers.plan import Plan, split_batch
from workers.task import Batch, MapDataset
from workers.training import data, memory
from workers.training.pairs import paired
from workers.training.place import Place
from workers.training.ragged import odd_sample
from workers.training.rows import check_rows


class Turnstile:
    """Lets one thread at a time into the user's datasets, which may share files and caches; tells where it is."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.place = Place()


class Batcher:
    """Fetches, collates and moves samples of one dataset; ``name`` is what the user calls it.

    With ``has_rows`` a batch of the user's own collate must have a row for every sample, as far as that can be seen.
    """

    def __init__(
        self,
        dataset: MapDataset,
        collate: Callable[[Sequence[Any]], Batch] | None,
        device: torch.device,
        name: str = "train_data",
        *,
        has_rows: bool = False,
        turnstile: Turnstile | None = None,
    ) -> None:
        self.dataset, self.own_collate, self.name, self.has_rows = dataset, collate, name, has_rows
        self._collate = default_collate if collate is None else collate
        self._device, self._had_rows = device, False
        self.turnstile = turnstile or Turnstile()
        # Rows of tensors, collated as they are, are one indexing each: several times as fast as sample by sample.
        is_plain = type(dataset) is TensorDataset and collate is None
        self._columns = list(dataset.tensors) if is_plain and isinstance(dataset, TensorDataset) else None

    @property
    def is_plain(self) -> bool:
        """Whether reading is indexing of tensors: nothing in it is random, and nothing takes time."""
        return self._columns is not None

    def batch(self, indexes: Sequence[int]) -> Batch:
        """A batch on the device. Raises as ``read``."""
        return self.moved(self.read(indexes))

    def moved(self, batch: Batch) -> Batch:
        """The batch on the device."""
        return batch if self._device.type == "cpu" else to_device(batch, self._device)

    def read(self, indexes: Sequence[int]) -> Batch:
        """A batch on the CPU. Raises DataError, or whatever signals a lack of memory."""
        if self._columns is not None:
            rows = torch.from_numpy(np.array(indexes, dtype=np.int64))  # torch.tensor takes three times as long
            return [column[rows] for column in self._columns]
        place = self.turnstile.place
        with self.turnstile.lock, place.reading(self.name):
            samples = data.fetch(self.dataset, indexes, self.name, memory.is_out_of_memory, place.note)
            return self._collated(samples, indexes)

    def _collated(self, samples: list[Any], indexes: Sequence[int]) -> Batch:
        try:
            batch = self._collate(samples)
        except JobError:
            raise
        except (Exception, SystemExit) as error:
            if memory.is_out_of_memory(error):
                raise
            odd = odd_sample(samples, indexes, self.name)
            raise DataError(
                f"collate of {len(samples)} samples of {self.name} (indexes {list(indexes)[:8]}) raised "
                f"{described(error)}{f'; {odd}' if odd else ''}; make the samples alike, or give the task its own "
                "collate"
            ) from error
        if self.has_rows and self.own_collate is not None:
            self._had_rows |= check_rows(batch, len(samples), self.name, has_rows=self._had_rows)
        return batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with every tensor in it on the device; containers are rebuilt, all else is kept."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=True)
        return value.to(device) if hasattr(value, "to") else value

    return with_leaves(batch, moved)


def with_leaves(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    """The batch with what ``change`` makes of each value that is no container; containers are rebuilt."""
    if isinstance(batch, Mapping):
        return _mapped(batch, {key: with_leaves(value, change) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(with_leaves(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(with_leaves(value, change) for value in batch)
    return change(batch)


def _mapped(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """A mapping of the same class where that can be written to, as torch's own ``pin_memory`` has it; else a dict."""
    if type(batch) is dict or not isinstance(batch, MutableMapping):
        return values
    same = copy.copy(batch)
    same.update(values)
    return same


def own_part(plan: Plan, rank: int, num_samples: int, *, is_paired: bool = False) -> tuple[int, int]:
    """The part [begin, end) of a batch of ``num_samples`` that ``rank`` computes; parts follow the ranks.

    ``is_paired``: none is of a single sample, where the batch has two.
    """
    by_rank = sorted(plan.members, key=lambda m: m.rank)
    sizes = split_batch(num_samples, [m.weight for m in by_rank])
    sizes = paired(sizes) if is_paired else sizes
    begin = sum(sizes[:rank])
    return begin, begin + sizes[rank]


def pieces(begin: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """[begin, end) in pieces of at most ``size``."""
    for at in range(begin, end, size):
        yield at, min(at + size, end)


_num_seedings = [0]


def num_seedings() -> int:
    """How often this process has seeded its generators."""
    return _num_seedings[0]


def seed_all(seed: int, round: int, position: int, use: bytes = b"") -> None:
    """Seed torch, numpy and ``random`` for the micro-batch that begins at ``position`` of this round's batch.

    So a round that is tried again draws the same numbers, and no two micro-batches of it do. With another ``use``
    they are others: data may be read by another process, so what computing draws must not come after them.
    """
    _num_seedings[0] += 1
    mixed = zlib.crc32(b"%d %d %d" % (seed, round, position) + use)
    torch.default_generator.manual_seed(mixed)
    for generator in torch.cuda.default_generators:  # none until a GPU is used
        generator.manual_seed(mixed)
    random.seed(mixed)
    np.random.seed(mixed)  # the generator that users' data code draws from

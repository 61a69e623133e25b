"""From indexes to batches on the device, and from a part of the global batch to micro-batches."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from workers.errors import DataError, JobError, described
from workers.plan import Plan, split_batch
from workers.task import Batch, MapDataset
from workers.training import data, memory
from workers.training.rows import check_rows


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
    ) -> None:
        self._dataset = dataset
        self._collate = default_collate if collate is None else collate
        self._device = device
        self._name = name
        self._has_rows = has_rows and collate is not None
        # Rows of tensors, collated as they are, are one indexing each: several times as fast as sample by sample.
        is_plain = type(dataset) is TensorDataset and collate is None
        self._columns = list(dataset.tensors) if is_plain and isinstance(dataset, TensorDataset) else None

    def batch(self, indexes: Sequence[int]) -> Batch:
        """A batch on the device. Raises DataError, or whatever signals a lack of memory."""
        if self._columns is not None:
            rows = torch.tensor(indexes)
            return [to_device(column[rows], self._device) for column in self._columns]
        samples = data.fetch(self._dataset, indexes, self._name, memory.is_out_of_memory)
        try:
            batch = self._collate(samples)
        except JobError:
            raise
        except (Exception, SystemExit) as error:
            if memory.is_out_of_memory(error):
                raise
            raise DataError(
                f"collate of {len(samples)} samples of {self._name} (indexes {list(indexes)[:8]}) raised "
                f"{described(error)}; make the samples alike, or give the task its own collate"
            ) from error
        if self._has_rows:
            check_rows(batch, len(samples), self._name)
        return batch if self._device.type == "cpu" else to_device(batch, self._device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with every tensor in it on the device; containers are rebuilt, all else is kept."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch


def own_part(plan: Plan, rank: int, num_samples: int) -> tuple[int, int]:
    """The part [begin, end) of a batch of ``num_samples`` that ``rank`` computes; parts follow the ranks."""
    by_rank = sorted(plan.members, key=lambda m: m.rank)
    sizes = split_batch(num_samples, [m.weight for m in by_rank])
    begin = sum(sizes[:rank])
    return begin, begin + sizes[rank]


def pieces(begin: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """[begin, end) in pieces of at most ``size``."""
    for at in range(begin, end, size):
        yield at, min(at + size, end)


def seed_all(seed: int, round: int, position: int) -> None:
    """Seed torch, numpy and ``random`` for the micro-batch that begins at ``position`` of this round's batch.

    So a round that is tried again draws the same numbers, and no two micro-batches of it do.
    """
    mixed = zlib.crc32(b"%d %d %d" % (seed, round, position))
    torch.default_generator.manual_seed(mixed)
    for generator in torch.cuda.default_generators:  # none until a GPU is used
        generator.manual_seed(mixed)
    random.seed(mixed)
    np.random.seed(mixed)  # the generator that users' data code draws from

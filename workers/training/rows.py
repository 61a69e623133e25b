"""Whether a collated batch still has a row for every sample that went in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from workers.errors import DataError
from workers.task import Batch


def check_rows(batch: Batch, num_samples: int, name: str, *, has_rows: bool = False) -> bool:
    """Check that ``collate`` lost none of ``num_samples`` of ``name``, as far as its tensors tell.

    For losses that are means over samples: of others nobody knows what a row is. A batch that is laid out otherwise
    (several samples in one row, time before samples, no tensors) tells nothing and passes: all its tensors must have
    the same number of rows, and none of them ``num_samples`` as its second dimension. A single row may hold all
    samples, but not where ``has_rows``: an earlier batch had a row for each. Returns whether this one has.

    Raises DataError.
    """
    shapes = [tensor.shape for tensor in tensors_in(batch) if tensor.dim() > 0]
    num_rows = {shape[0] for shape in shapes}
    if len(num_rows) != 1 or any(num_samples in shape[:2] for shape in shapes):
        return num_samples > 1 and num_rows == {num_samples}
    (rows,) = num_rows
    if rows < num_samples and (rows != 1 or has_rows):
        raise DataError(
            f"collate made a batch of {rows} rows from {num_samples} samples of {name}; return a row for every sample, "
            "or give the task `weight`, which tells what the loss is a mean over"
        )
    return False


def check_packed(batch: Batch, num_tokens: int, longest: int, num_samples: int, *, is_mean_over_samples: bool) -> None:
    """Check that ``collate`` laid all tokens of ``num_samples`` end to end, as far as its tensors tell.

    ``longest`` has the most tokens of them. Raises DataError where the samples lie beside each other, each as long as
    the longest, and nothing is as long as all of them; where a loss is a mean over samples also where no tensor has as
    many elements as there are tokens.
    """
    shapes = [tensor.shape for tensor in tensors_in(batch) if not tensor.is_nested]
    sides = {num_samples, longest}
    is_padded = num_samples > 1 and any(len(shape) > 1 and set(shape[:2]) == sides for shape in shapes)
    if is_padded and num_samples * longest > num_tokens > max(side for shape in shapes for side in shape):
        raise DataError(
            f"collate padded {num_samples} samples, which have {num_tokens} tokens by `length`, to {longest} "
            "each, though the task says `packed`; lay all of them end to end, or leave `packed` out"
        )
    largest = max((tensor.numel() for tensor in tensors_in(batch)), default=num_tokens)
    if is_mean_over_samples and largest < num_tokens:
        raise DataError(
            f"collate packed {num_samples} samples, which have {num_tokens} tokens by `length`, into tensors of at "
            f"most {largest} elements; lay all of them end to end, tell by `length` what they take up there, or give "
            "the task `weight`, which tells what the loss is a mean over"
        )


def tensors_in(batch: Batch) -> Iterator[torch.Tensor]:
    """The tensors of a batch, as far as they lie in mappings, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_in(value)

"""What a user's entrypoint returns: plain PyTorch, nothing to inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import nn

Batch: TypeAlias = Any
"""What ``collate`` returns for a list of samples; opaque to everything but the user's code."""


class MapDataset(Protocol):
    """A map-style dataset: ``len`` and an integer index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


LossResult: TypeAlias = "torch.Tensor | tuple[torch.Tensor, Mapping[str, float | torch.Tensor]]"


@dataclass(kw_only=True)
class TrainingTask:
    """Everything a training needs. Any object with these attributes serves as well.

    ``loss(model, batch)`` gives a scalar tensor, a mean over the batch's units, or that and a
    mapping of further values to record. ``weight(batch)`` is the number of units that the loss is
    a mean over (tokens, say); None means samples. ``evaluate(model, batch)`` gives means over the
    batch's samples. ``optimizer(params, lr)`` builds the optimizer; None means AdamW.
    ``collate(samples)`` makes a batch; None means torch's default. ``length(sample)`` is its
    number of tokens, an int above 0: samples of about one length then go together, padded by ``collate`` to the
    longest of the micro-batch, so that little of what is computed is padding. Which samples a step has stays the same.
    ``length_at(dataset, index)`` in its place tells it of ``train_data`` or ``eval_data`` without reading the sample.
    ``packed`` says that ``collate`` lays samples end to end instead, and that the model keeps them apart, as by
    attention within each (a block-diagonal mask): a micro-batch then takes as many tokens as its samples have.
    """

    model: nn.Module
    train_data: MapDataset
    loss: Callable[[nn.Module, Batch], LossResult]
    weight: Callable[[Batch], float] | None = None
    eval_data: MapDataset | None = None
    evaluate: Callable[[nn.Module, Batch], Mapping[str, float | torch.Tensor]] | None = None
    optimizer: Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer] | None = None
    collate: Callable[[Sequence[Any]], Batch] | None = None
    length: Callable[[Any], int] | None = None
    length_at: Callable[[Any, int], int] | None = None
    packed: bool = False

    @property
    def tells_lengths(self) -> bool:
        """Whether samples have lengths, by which they go together."""
        return self.length is not None or self.length_at is not None

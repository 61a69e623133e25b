"""Plain single-process PyTorch: what every elastic run must come out equal to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from workers.status import RoundRecord
from workers.task import MapDataset


@dataclass(frozen=True)
class Reference:
    """The trained model and the loss of every step."""

    model: nn.Module
    losses: list[float]


def batches(dataset: MapDataset, batch_size: int, seed: int, num_steps: int) -> Iterator[list[torch.Tensor]]:
    """Shuffled batches, epoch after epoch."""
    return batches_of(dataset, [batch_size] * num_steps, seed)


def batches_of(dataset: MapDataset, sizes: Iterable[int], seed: int) -> Iterator[list[torch.Tensor]]:
    """The same with a size for each step."""
    order: list[int] = []
    epoch = 0
    for size in sizes:
        while len(order) < size:
            order += np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(dataset)).tolist()
            epoch += 1
        samples, order = [dataset[i] for i in order[:size]], order[size:]
        yield [torch.stack(column) for column in zip(*samples, strict=True)]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterator[list[torch.Tensor]],
    loss_of: Callable[[nn.Module, list[torch.Tensor]], torch.Tensor],
    clip_norm: float | None = None,
) -> Reference:
    """The training loop of every tutorial."""
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return Reference(model, losses)


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of any parameter or buffer."""
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    formats = {k: torch.promote_types(mine[k].dtype, torch.float64) for k in mine}
    return max((mine[k].to("cpu", formats[k]) - theirs[k].to("cpu", formats[k])).abs().max().item() for k in mine)


def last_noise(records: Sequence[RoundRecord]) -> float:
    """The noise scale that is known after these rounds: a round that measures tells it."""
    return next(r.values["noise_scale"] for r in reversed(records) if "noise_scale" in r.values)


def follow_batch(optimizer: torch.optim.Adam, noise_scale: float, before: int, batch: int) -> None:
    """Second moments of batches of ``before`` samples as those of ``batch``: their mean is |G|^2 + tr(Sigma) / B."""
    for held in optimizer.state.values():
        held["exp_avg_sq"] *= (noise_scale / batch + 1) / (noise_scale / before + 1)

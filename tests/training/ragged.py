"""Sequences of unequal lengths, and a small net that pools what is no padding, for tests of length-aware batching."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from tests.training.tasks import reset
from workers.task import TrainingTask

NUM_SAMPLES = 50
LONGEST = 60

Sample = tuple[torch.Tensor, torch.Tensor]
Padded = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Packed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Sequences:
    """Sequences (x_T3, y_2) of log-normal lengths up to ``LONGEST``, the same every time."""

    def __init__(self, num_samples: int = NUM_SAMPLES, dtype: torch.dtype = torch.float64) -> None:
        draw = np.random.Generator(np.random.PCG64(5))
        lengths = np.clip(draw.lognormal(2.0, 0.9, num_samples), 1, LONGEST).astype(int)
        self.samples = [
            (torch.tensor(draw.normal(size=(n, 3)), dtype=dtype), self._target(draw, dtype)) for n in lengths
        ]

    def _target(self, draw: np.random.Generator, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(draw.normal(size=2), dtype=dtype)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


class Pooled(nn.Module):
    """Each token by itself, then the mean over those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 8), nn.Linear(8, 2)

    def tokens(self, x_BT3: torch.Tensor) -> torch.Tensor:
        out_BT2: torch.Tensor = self.outer(torch.tanh(self.inner(x_BT3)))
        return out_BT2

    def forward(self, x_BT3: torch.Tensor, there_BT: torch.Tensor) -> torch.Tensor:
        return (self.tokens(x_BT3) * there_BT[..., None]).sum(dim=1) / there_BT.sum(dim=1, keepdim=True)


def pooled() -> Pooled:
    """With the same weights every time."""
    model = Pooled().to(torch.float64)
    reset(model, 3)
    return model


def length(sample: Sample) -> int:
    return len(sample[0])


def pad(samples: Sequence[Sample]) -> Padded:
    """x_BT3, which tokens are there (BT, 0 or 1), and y_B2."""
    x_BT3 = pad_sequence([x for x, _ in samples], batch_first=True)
    lengths_B1 = torch.tensor([[len(x)] for x, _ in samples])
    there_BT = (torch.arange(x_BT3.shape[1])[None, :] < lengths_B1).to(x_BT3.dtype)
    return x_BT3, there_BT, torch.stack([y for _, y in samples])


def pack(samples: Sequence[Sample]) -> Packed:
    """x_N3 of all samples end to end, whose each token is (N), and y_B2."""
    lengths_B = torch.tensor([len(x) for x, _ in samples])
    sample_N = torch.repeat_interleave(torch.arange(len(samples)), lengths_B)
    return torch.cat([x for x, _ in samples]), sample_N, torch.stack([y for _, y in samples])


def packed_mean(model: nn.Module, batch: Packed) -> torch.Tensor:
    """As ``sample_mean``, of a batch without padding."""
    x_N3, sample_N, y_B2 = batch
    assert isinstance(model, Pooled)
    sums_B2 = torch.zeros_like(y_B2).index_add(0, sample_N, model.tokens(x_N3))
    loss: torch.Tensor = (sums_B2 / sample_N.bincount()[:, None] - y_B2).square().mean()
    return loss


def sample_mean(model: nn.Module, batch: Padded) -> torch.Tensor:
    """Mean squared error, a mean over the samples."""
    x_BT3, there_BT, y_B2 = batch
    loss: torch.Tensor = (model(x_BT3, there_BT) - y_B2).square().mean()
    return loss


def token_mean(model: nn.Module, batch: Padded) -> torch.Tensor:
    """The squared error of each token, a mean over the tokens that are there."""
    x_BT3, there_BT, y_B2 = batch
    assert isinstance(model, Pooled)
    each_BT = (model.tokens(x_BT3) - y_B2[:, None, :]).square().mean(dim=-1)
    return (each_BT * there_BT).sum() / there_BT.sum()


def num_tokens(batch: Padded) -> float:
    return float(batch[1].sum())


def packed_token_mean(model: nn.Module, batch: Packed) -> torch.Tensor:
    """As ``token_mean``, of a batch without padding."""
    x_N3, sample_N, y_B2 = batch
    assert isinstance(model, Pooled)
    return (model.tokens(x_N3) - y_B2[sample_N]).square().mean()


def num_packed_tokens(batch: Packed) -> float:
    return float(len(batch[0]))


def sequence_task(**given: object) -> TrainingTask:
    """A task over ``Sequences``, a mean over samples, with lengths."""
    task = TrainingTask(
        model=pooled(),
        train_data=Sequences(),
        loss=sample_mean,
        collate=pad,
        length=length,
        optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    )
    for name, value in given.items():
        setattr(task, name, value)
    return task

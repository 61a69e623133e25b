"""A small training on sequences in which one worker computes everything several times, for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workers.task import TrainingTask

NUM_SAMPLES = 1024
NUM_TOKENS, NUM_FEATURES, WIDTH, NUM_CLASSES = 256, 24, 128, 10
LR = 0.01
NUM_TOKENS_PACED = 4
NOTED_EVERY = 25
"""Steps between two whose parameters and mean gradient are written down."""


class Sequences(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random sequences (samples S, tokens T, features F) with random labels: the same for everybody."""

    def __init__(self, num_tokens: int = NUM_TOKENS) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features_STF = torch.randn(NUM_SAMPLES, num_tokens, NUM_FEATURES, generator=generator)
        self.labels_S = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features_STF[index], self.labels_S[index]


class NotedSGD(torch.optim.SGD):
    """Plain SGD that writes down some of its steps: number, parameters before, mean gradient."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, folder: Path) -> None:
        super().__init__(params, lr=lr)
        self._folder, self._num = folder, 0

    def step(self, closure: Any = None) -> Any:
        """One step, written down first where it is its turn."""
        if self._num % NOTED_EVERY == 0:
            own = self.param_groups[0]["params"]
            noted = {"parameters": [p.detach().clone() for p in own], "gradients": [p.grad.clone() for p in own]}
            torch.save(noted, self._folder / f"step-{self._num}.pt")
        self._num += 1
        return super().step(closure)


def make_model() -> nn.Module:
    """The same layers for every token: much to compute for few parameters to exchange."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, NUM_CLASSES),
    )


def plain_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The mean over a batch of S samples: each is judged by the mean of its tokens."""
    features_STF, labels_S = batch
    return F.cross_entropy(model(features_STF).mean(1), labels_S)


def repeated(times: int) -> Callable[[nn.Module, Any], torch.Tensor]:
    """The same loss, after as many passes forward and backward before it that leave nothing behind."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        for _ in range(times - 1):
            torch.autograd.grad(plain_loss(model, batch), list(model.parameters()))
        return plain_loss(model, batch)

    return loss


def paced(times: int, sample_s: float) -> Callable[[nn.Module, Any], torch.Tensor]:
    """The same loss, before which so much time is let go by for each sample: it asks for no core."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(times * sample_s * len(batch[1]))
        return plain_loss(model, batch)

    return loss


def build(config: dict[str, Any]) -> TrainingTask:
    """The entrypoint; the worker ``slow`` computes ``times`` as much, or waits so where ``sample_s`` is not 0."""
    times = config["times"] if config["worker"] == config["slow"] else 1
    folder = Path(config["folder"]) / config["worker"]
    folder.mkdir()
    torch.set_num_threads(1)
    return TrainingTask(
        model=make_model(),
        train_data=Sequences(config["num_tokens"]),
        loss=paced(times, config["sample_s"]) if config["sample_s"] else repeated(times),
        optimizer=lambda parameters, lr: NotedSGD(parameters, lr, folder),
    )

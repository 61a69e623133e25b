"""The digits recipe in plain torch: what a rival's trial trains, and what the grid of curves holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import TensorDataset

from tests.benchmarks.sweeps_setting import BASE_BATCH
from workers.recipes import digits


def epochs_of(config: Mapping[str, Any], num_epochs: int, seed: int = 0) -> Iterator[float]:
    """Train; the accuracy after each epoch. ``config`` has lr, batch and hidden."""
    training = Training(config, seed)
    for _ in range(num_epochs):
        training.epoch()
        yield training.accuracy()


class Training:
    """One model with its data. One thread, as one of our workers has."""

    def __init__(self, config: Mapping[str, Any], seed: int = 0) -> None:
        torch.set_num_threads(1)
        self._generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        task = digits.build({"hidden": config["hidden"]})
        self._model = task.model
        self._train, self._eval = _tensors(task.train_data), _tensors(task.eval_data)
        self._batch = int(config.get("batch", BASE_BATCH))
        # Fused, as our workers take it where it can be had.
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=float(config["lr"]), fused=True)

    def epoch(self) -> None:
        """Each sample once."""
        self.steps(-(-len(self._train[1]) // self._batch))

    def steps(self, num_steps: int) -> None:
        """So many batches from the beginning of an epoch."""
        images_NP, labels_N = self._train
        order = torch.randperm(len(labels_N), generator=self._generator)
        for chosen in order.split(self._batch)[:num_steps]:
            self._optimizer.zero_grad()
            digits.loss(self._model, [images_NP[chosen], labels_N[chosen]]).backward()
            self._optimizer.step()

    def accuracy(self) -> float:
        """On the images that are held out."""
        with torch.no_grad():
            return float(digits.evaluate(self._model, list(self._eval))["accuracy"])


def _tensors(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(data, TensorDataset)
    images_NP, labels_N = data.tensors
    return images_NP, labels_N

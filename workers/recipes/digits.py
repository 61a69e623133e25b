"""Handwritten digits: scikit-learn's bundled 1,797 images of 8 x 8 pixels, real data without a download.

``config``: ``model`` (``mlp`` or ``cnn``), ``hidden`` (width of the MLP's hidden layers, or of the CNN's last),
``layers`` (hidden layers of the MLP), ``channels`` (of the CNN's first convolution), ``dropout``.

Shapes: B samples, P = 64 pixels, C = 10 classes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from workers.recipes.holding_out import stratified
from workers.recipes.options import check_range, read_options
from workers.task import TrainingTask

NUM_PIXELS = 64
NUM_CLASSES = 10
PIXEL_MEAN, PIXEL_STD = 4.9, 6.0  # of all pixels, which count from 0 to 16
EVAL_FRACTION = 0.2
SPLIT_SEED = 2  # fixed: every job and every worker holds out the same images


@dataclass(frozen=True, slots=True, kw_only=True)
class DigitsOptions:
    """What ``config`` may hold."""

    model: str = "mlp"
    hidden: int = 256
    layers: int = 2
    channels: int = 16
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.model not in ("mlp", "cnn"):
            raise ValueError(f"config.model={self.model!r} is not known; give 'mlp' or 'cnn'")
        check_range("hidden", self.hidden, 1, 65536)
        check_range("layers", self.layers, 1, 64)
        check_range("channels", self.channels, 1, 1024)
        check_range("dropout", self.dropout, 0.0, 0.95)


def build(config: dict[str, Any]) -> TrainingTask:
    """The entrypoint ``workers.recipes.digits:build``."""
    options = read_options(DigitsOptions, config)
    train_data, eval_data = load_split()
    return TrainingTask(
        model=mlp(options) if options.model == "mlp" else cnn(options),
        train_data=train_data,
        eval_data=eval_data,
        loss=loss,
        evaluate=evaluate,
    )


@functools.cache
def load_split() -> tuple[TensorDataset, TensorDataset]:
    """Training and evaluation data: standardised pixels as float32, and the digit; every class in its share.

    Loaded once in a process, which may serve one trial of a sweep after another.
    """
    table = np.loadtxt(_bundled(), delimiter=",", dtype=np.float32)  # pixels, then the digit
    images_NP = (torch.from_numpy(table[:, :NUM_PIXELS]) - PIXEL_MEAN) / PIXEL_STD
    digits = table[:, NUM_PIXELS].astype(np.int64)
    labels_N = torch.from_numpy(digits)
    train, held_out = stratified(digits, EVAL_FRACTION, SPLIT_SEED)
    return (
        TensorDataset(images_NP[train], labels_N[train]),
        TensorDataset(images_NP[held_out], labels_N[held_out]),
    )


def _bundled() -> Path:
    """The table within scikit-learn, which is not imported: that takes as long as torch."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("the digits come with scikit-learn, which is not installed here", name="sklearn")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


def mlp(options: DigitsOptions) -> nn.Module:
    """A perceptron with ``options.layers`` hidden layers."""
    parts: list[nn.Module] = []
    width = NUM_PIXELS
    for _ in range(options.layers):
        parts += [nn.Linear(width, options.hidden), nn.ReLU(), nn.Dropout(options.dropout)]
        width = options.hidden
    return nn.Sequential(*parts, nn.Linear(width, NUM_CLASSES))


def cnn(options: DigitsOptions) -> nn.Module:
    """Two convolutions, a pooling from 8 x 8 to 4 x 4, and two linear layers."""
    first, second = options.channels, 2 * options.channels
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(options.dropout),
        nn.Linear(second * 16, options.hidden),
        nn.ReLU(),
        nn.Linear(options.hidden, NUM_CLASSES),
    )


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Cross entropy, a mean over the samples."""
    images_BP, labels_B = batch
    return F.cross_entropy(model(images_BP), labels_B)


def evaluate(model: nn.Module, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Accuracy and cross entropy, means over the samples."""
    images_BP, labels_B = batch
    logits_BC = model(images_BP)
    is_right_B = logits_BC.argmax(dim=1) == labels_B
    return {"accuracy": is_right_B.float().mean(), "loss": F.cross_entropy(logits_BC, labels_B)}

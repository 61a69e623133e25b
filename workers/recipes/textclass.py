"""Tell from a function's text which package it is of: functions of Python's own library, which every machine has.

Their lengths spread as those of texts do (log-normal, from 5 words to 2,000), so this is the recipe that shows
batching by length. ``config``: ``dim``, ``layers``, ``heads``, ``dropout``, ``vocabulary`` (numbers that words are
hashed to), ``max_words`` (what is longer is cut off), ``packed`` (texts lie end to end, and none is padded).

Shapes: B samples, D width, C packages; tokens as their layout has them.
"""

from __future__ import annotations

import functools
import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workers.recipes import layouts
from workers.recipes.layouts import PADDING, Layout
from workers.recipes.options import check_range, read_options
from workers.task import TrainingTask

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
SKIPPED_FOLDERS = frozenset({"__pycache__", "test", "tests"})
EVERY_HELD_OUT = 10  # one function in so many is for evaluation

# The head of a function, and the lines below it that are indented further, or empty.
FUNCTION = re.compile(r"^([ \t]*)((?:async )?def .*\n(?:\1[ \t]+.*\n|[ \t]*\n)*)", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]")

Sample = tuple[torch.Tensor, int]
Batch = tuple[torch.Tensor, Layout, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What ``config`` may hold."""

    dim: int = 64
    layers: int = 1
    heads: int = 4
    dropout: float = 0.0
    vocabulary: int = 4096
    max_words: int = 512
    packed: bool = False

    def __post_init__(self) -> None:
        check_range("dim", self.dim, 1, 65536)
        check_range("layers", self.layers, 0, 256)
        check_range("heads", self.heads, 1, 256)
        check_range("dropout", self.dropout, 0.0, 0.95)
        check_range("vocabulary", self.vocabulary, 2, 2**24)
        check_range("max_words", self.max_words, 1, 65536)
        if self.dim % self.heads:
            raise ValueError(f"config.dim={self.dim} is not a multiple of heads={self.heads}; change one of them")


def build(config: dict[str, Any]) -> TrainingTask:
    """The entrypoint ``workers.recipes.textclass:build``."""
    options = read_options(TextOptions, config)
    samples = [(numbered(text, options), package) for text, package in load_functions()]
    return TrainingTask(
        model=Classifier(options),
        train_data=[sample for n, sample in enumerate(samples) if n % EVERY_HELD_OUT],
        eval_data=samples[::EVERY_HELD_OUT],
        loss=loss,
        evaluate=evaluate,
        collate=pack if options.packed else pad,
        length=num_words,
        packed=options.packed,
    )


@functools.cache
def load_functions() -> tuple[tuple[str, int], ...]:
    """Each function of the packages, with its package's number; always in the same order.

    Read once in a process, which may serve one trial of a sweep after another.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    return tuple((text, n) for n, package in enumerate(PACKAGES) for text in _functions(library / package))


def _functions(package: Path) -> Iterator[str]:
    for path in sorted(package.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(package).parts):
            for _, text in FUNCTION.findall(path.read_text(encoding="utf-8")):
                yield text


def numbered(text: str, options: TextOptions) -> torch.Tensor:
    """The words of a text as numbers from 1 to ``vocabulary``; some words share one."""
    words = WORD.findall(text)[: options.max_words]
    return torch.tensor([zlib.crc32(word.encode()) % options.vocabulary + 1 for word in words])


def num_words(sample: Sample) -> int:
    """How long a sample is."""
    return len(sample[0])


def pad(samples: Sequence[Sample]) -> Batch:
    """Words padded to the longest text, their layout, and packages_B."""
    return *layouts.pad([words for words, _ in samples]), _packages(samples)


def pack(samples: Sequence[Sample]) -> Batch:
    """Words of all texts end to end, their layout, and packages_B."""
    return *layouts.pack([words for words, _ in samples]), _packages(samples)


def _packages(samples: Sequence[Sample]) -> torch.Tensor:
    return torch.tensor([package for _, package in samples])


class Block(nn.Module):
    """Self-attention to all words of a text and a feed-forward layer, each after a norm and with a residual."""

    def __init__(self, options: TextOptions) -> None:
        super().__init__()
        self.heads, self.dropout = options.heads, options.dropout
        self.norm_attention = nn.LayerNorm(options.dim)
        self.qkv = nn.Linear(options.dim, 3 * options.dim)
        self.project = nn.Linear(options.dim, options.dim)
        self.norm_feed = nn.LayerNorm(options.dim)
        self.feed = nn.Sequential(
            nn.Linear(options.dim, 2 * options.dim), nn.GELU(), nn.Linear(2 * options.dim, options.dim)
        )
        self.drop = nn.Dropout(options.dropout)

    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        """``x`` and what is returned end in D."""
        qkv, dropout = self.qkv(self.norm_attention(x)), self.dropout if self.training else 0.0
        x = x + self.drop(self.project(layout.attend(qkv, self.heads, dropout)))
        out: torch.Tensor = x + self.drop(self.feed(self.norm_feed(x)))
        return out


class Classifier(nn.Module):
    """Words in, logits of the package out: embedding, blocks, the mean over a text's words."""

    def __init__(self, options: TextOptions) -> None:
        super().__init__()
        self.embed = nn.Embedding(options.vocabulary + 1, options.dim, padding_idx=PADDING)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.dim)
        self.head = nn.Linear(options.dim, len(PACKAGES))

    def forward(self, words: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Gives logits_BC."""
        x = self.embed(words)
        for block in self.blocks:
            x = block(x, layout)
        logits_BC: torch.Tensor = self.head(layout.mean(self.norm(x)))
        return logits_BC


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy in nats, a mean over the samples."""
    words, layout, packages_B = batch
    return F.cross_entropy(model(words, layout), packages_B)


def evaluate(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """Accuracy and cross entropy, means over the samples."""
    words, layout, packages_B = batch
    logits_BC = model(words, layout)
    is_right_B = logits_BC.argmax(dim=1) == packages_B
    return {"accuracy": is_right_B.float().mean(), "loss": F.cross_entropy(logits_BC, packages_B)}

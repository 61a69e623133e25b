"""A small decoder-only GPT over bytes of text that every machine has: Python's own standard library.

``config``: ``dim``, ``layers``, ``heads``, ``context`` (bytes), ``dropout``, ``max_bytes`` (of text),
``tied`` (one matrix for embedding and output).

Shapes: B samples, T positions of the context, D width, V = 256 byte values.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workers.recipes.options import check_range, read_options
from workers.task import TrainingTask

NUM_BYTE_VALUES = 256
EVERY_HELD_OUT = 20  # one window in so many is for evaluation: spread over all files, as their kinds differ
# Not sources of the library itself, or present on some machines only.
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOptions:
    """What ``config`` may hold."""

    dim: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 64
    dropout: float = 0.0
    max_bytes: int = 1_000_000
    tied: bool = True

    def __post_init__(self) -> None:
        check_range("dim", self.dim, 1, 65536)
        check_range("layers", self.layers, 1, 256)
        check_range("heads", self.heads, 1, 256)
        check_range("context", self.context, 1, 65536)
        check_range("dropout", self.dropout, 0.0, 0.95)
        least = EVERY_HELD_OUT * self.context + 1
        if self.max_bytes < least:
            raise ValueError(
                f"config.max_bytes={self.max_bytes} is too little text to hold some out at context={self.context}; "
                f"give at least {least}"
            )
        if self.dim % self.heads:
            raise ValueError(f"config.dim={self.dim} is not a multiple of heads={self.heads}; change one of them")


def build(config: dict[str, Any]) -> TrainingTask:
    """The entrypoint ``workers.recipes.chargpt:build``."""
    options = read_options(GptOptions, config)
    text_N = torch.frombuffer(bytearray(gather_text(options.max_bytes)), dtype=torch.uint8)
    num_windows = (len(text_N) - 1) // options.context
    held_out = set(range(EVERY_HELD_OUT - 1, num_windows, EVERY_HELD_OUT))
    return TrainingTask(
        model=Gpt(options),
        train_data=Windows(text_N, options.context, [w for w in range(num_windows) if w not in held_out]),
        eval_data=Windows(text_N, options.context, sorted(held_out)),
        loss=loss,
        weight=num_tokens,
        evaluate=evaluate,
    )


def gather_text(max_bytes: int) -> bytes:
    """The first ``max_bytes`` of the library's sources, file after file in an order that is mixed but fixed."""
    library = Path(sysconfig.get_paths()["stdlib"])
    ordered = sorted(_sources(library), key=lambda path: hashlib.sha256(str(path).encode()).digest())
    text = bytearray()
    for path in ordered:
        text += (library / path).read_bytes() + b"\n"
        if len(text) >= max_bytes:
            break
    return bytes(text[:max_bytes])


def _sources(library: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(library):
        inner[:] = [name for name in inner if name not in SKIPPED_FOLDERS]  # not even looked into: they may be huge
        for name in files:
            if name.endswith(".py"):
                yield (Path(folder) / name).relative_to(library)


class Windows:
    """Windows of ``context`` bytes, and the byte after each, that together predict every byte of a text once.

    ``chosen`` are the numbers of the windows that belong to this dataset.
    """

    def __init__(self, text_N: torch.Tensor, context: int, chosen: Sequence[int]) -> None:
        self.text_N, self.context, self.chosen = text_N, context, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int, /) -> torch.Tensor:
        begin = self.chosen[index] * self.context
        return self.text_N[begin : begin + self.context + 1].long()


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a norm and with a residual."""

    def __init__(self, options: GptOptions) -> None:
        super().__init__()
        self.heads, self.dropout = options.heads, options.dropout
        self.norm_attention = nn.LayerNorm(options.dim)
        self.qkv = nn.Linear(options.dim, 3 * options.dim)
        self.project = nn.Linear(options.dim, options.dim)
        self.norm_feed = nn.LayerNorm(options.dim)
        self.feed = nn.Sequential(
            nn.Linear(options.dim, 4 * options.dim), nn.GELU(), nn.Linear(4 * options.dim, options.dim)
        )
        self.drop = nn.Dropout(options.dropout)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.drop(self._attend(self.norm_attention(x_BTD)))
        out_BTD: torch.Tensor = x_BTD + self.drop(self.feed(self.norm_feed(x_BTD)))
        return out_BTD

    def _attend(self, x_BTD: torch.Tensor) -> torch.Tensor:
        batch, length, width = x_BTD.shape
        split = self.qkv(x_BTD).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each: B, heads, T, width of a head
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        out_BTD: torch.Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return out_BTD


class Gpt(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, options: GptOptions) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUM_BYTE_VALUES, options.dim)
        self.position = nn.Embedding(options.context, options.dim)
        self.drop = nn.Dropout(options.dropout)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.dim)
        self.head = nn.Linear(options.dim, NUM_BYTE_VALUES, bias=False)
        self._initialise(options)

    def _initialise(self, options: GptOptions) -> None:
        """Normal(0, 0.02); what ends in a residual is scaled down by depth (Radford et al. 2019, GPT-2)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("project.weight", "feed.2.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * options.layers) ** 0.5 if is_residual else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if options.tied:
            self.head.weight = self.embed.weight

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """``ids_BT`` holds at most ``context`` byte values a sample; gives logits_BTV."""
        places_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        x_BTD = self.drop(self.embed(ids_BT) + self.position(places_T))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV: torch.Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Cross entropy in nats, a mean over the predicted bytes."""
    logits_BTV = model(batch[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1), batch[:, 1:].flatten())


def num_tokens(batch: torch.Tensor) -> float:
    """How many bytes a batch predicts: the units that ``loss`` is a mean over."""
    return float(batch[:, 1:].numel())


def evaluate(model: nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """Cross entropy in nats a byte and accuracy of the next byte; windows are equally long, so means over samples."""
    logits_BTV, next_BT = model(batch[:, :-1]), batch[:, 1:]
    return {
        "loss": F.cross_entropy(logits_BTV.flatten(0, 1), next_BT.flatten()),
        "accuracy": (logits_BTV.argmax(dim=-1) == next_BT).float().mean(),
    }

"""Samples of unequal lengths as one tensor: padded to the longest, or packed end to end; attention stays within each.

Shapes: B samples, T tokens of the longest of them, N tokens of all, D width, H heads, W = D / H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

PADDING = 0  # tokens are numbers from 1 on


class Layout(Protocol):
    """Where each token of a batch belongs. All else that a model does, it does to each token by itself."""

    def attend(self, qkv: torch.Tensor, heads: int, dropout: float) -> torch.Tensor:
        """Each token's attention to those of its own sample: ``qkv`` ends in 3 D, what is returned in D."""
        ...

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """The mean over each sample's tokens, mean_BD, of what ends in D."""
        ...


class Padded(NamedTuple):
    """A row a sample: tensors begin with B, T. ``there_BT`` tells tokens from padding."""

    there_BT: torch.Tensor

    def attend(self, qkv: torch.Tensor, heads: int, dropout: float) -> torch.Tensor:
        query, key, value = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)  # each: B, H, T, W
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=self.there_BT[:, None, None, :], dropout_p=dropout
        )
        return mixed.transpose(1, 2).flatten(-2)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        there_BT1 = self.there_BT[..., None].to(x.dtype)
        mean_BD: torch.Tensor = (x * there_BT1).sum(dim=1) / there_BT1.sum(dim=1)
        return mean_BD


class Packed(NamedTuple):
    """All in one row: tensors begin with N. ``lengths`` are those of the samples, ``sample_N`` is whose a token is.

    ``offsets`` is where samples begin, and N at the end.
    """

    lengths: tuple[int, ...]
    sample_N: torch.Tensor
    offsets: torch.Tensor

    def attend(self, qkv: torch.Tensor, heads: int, dropout: float) -> torch.Tensor:
        attend = self.attend_jagged if qkv.is_cuda else self.attend_each
        return attend(qkv, heads, dropout)

    def attend_each(self, qkv: torch.Tensor, heads: int, dropout: float) -> torch.Tensor:
        """One sample after the other: the blocks of a block-diagonal mask, and nothing of what it would mask."""
        mixed = []
        for own in torch.split(qkv, list(self.lengths)):
            query, key, value = own.view(len(own), 3, heads, -1).permute(1, 2, 0, 3)[:, None]  # each: 1, H, T, W
            attended = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
            mixed.append(attended[0].transpose(0, 1).flatten(-2))
        return torch.cat(mixed)

    def attend_jagged(self, qkv: torch.Tensor, heads: int, dropout: float) -> torch.Tensor:
        """The same by one kernel for samples of unequal lengths; CUDA has such, a CPU takes 30 times as long by it."""
        shortest, longest = min(self.lengths), max(self.lengths)
        query, key, value = (
            torch.nested.nested_tensor_from_jagged(
                part.contiguous(), self.offsets, min_seqlen=shortest, max_seqlen=longest
            ).transpose(1, 2)
            for part in qkv.view(len(qkv), 3, heads, -1).unbind(1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        flat: torch.Tensor = mixed.transpose(1, 2).values().flatten(-2)
        return flat

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)  # as torch's own sums have it within
        sum_BD = torch.zeros(len(self.lengths), x.shape[-1], dtype=wide, device=x.device)
        mean_BD = sum_BD.index_add(0, self.sample_N, x.to(wide)) / self.offsets.diff()[:, None]
        return mean_BD.to(x.dtype)


def pad(samples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Padded]:
    """tokens_BT, padded to the longest of the samples."""
    tokens_BT = pad_sequence(list(samples), batch_first=True, padding_value=PADDING)
    return tokens_BT, Padded(tokens_BT != PADDING)


def pack(samples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Packed]:
    """tokens_N, the samples end to end."""
    lengths = tuple(len(tokens) for tokens in samples)
    lengths_B = torch.tensor(lengths)
    sample_N = torch.repeat_interleave(torch.arange(len(lengths)), lengths_B)
    return torch.cat(list(samples)), Packed(lengths, sample_N, F.pad(lengths_B.cumsum(0), (1, 0)))

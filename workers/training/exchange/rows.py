"""Rows of encoded values, each with a tail behind its codes: what goes to ranks, or comes from them, a row each."""

from __future__ import annotations

from math import ceil

import torch

from workers.training.exchange.codecs import Codec

_ALIGNED_BYTES = 8


class Rows:
    """Memory of ``num_rows`` rows of ``numel`` values (a multiple of the codec's block) and tails like ``tail``.

    ``bytes_RB`` is what travels, on ``tail``'s device. ``has_error``: what encoding leaves out is worth keeping.
    """

    def __init__(self, codec: Codec, num_rows: int, numel: int, tail: torch.Tensor) -> None:
        self._codec, self.num_rows, self.has_error = codec, num_rows, codec.has_error
        num_code_bytes = codec.num_bytes(numel)
        tail_at = _aligned(num_code_bytes)
        num_bytes = _aligned(tail_at + tail.nbytes)
        self.bytes_RB = torch.zeros(num_rows, num_bytes, dtype=torch.uint8, device=tail.device)
        self._codes_RC = self.bytes_RB[:, :num_code_bytes]
        self.tails_RT = self.bytes_RB[:, tail_at:][:, : tail.nbytes].view(tail.dtype)

    def put_tail(self, tail: torch.Tensor) -> None:
        """Let every row carry this tail."""
        self.tails_RT.copy_(tail.expand_as(self.tails_RT))

    def encode(self, values_RN: torch.Tensor, error_RN: torch.Tensor | None = None) -> None:
        """Write fp32 rows, and what they leave out, where that is wanted."""
        self._codec.encode(values_RN, self._codes_RC, error_RN)

    def decode(self, row: int, out_1N: torch.Tensor) -> None:
        """Write the values of one row."""
        self._codec.decode(self._codes_RC[row : row + 1], out_1N)

    def decode_all(self, out_RN: torch.Tensor) -> None:
        """Write the values of all rows."""
        self._codec.decode(self._codes_RC, out_RN)


def _aligned(num_bytes: int) -> int:
    return ceil(num_bytes / _ALIGNED_BYTES) * _ALIGNED_BYTES

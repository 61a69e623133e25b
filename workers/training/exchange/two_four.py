"""Two of every four gradients, as sparse matrices in hardware have them: a byte for each, 4 bits for which they are.

The four lie a quarter of a block apart and not side by side, so that every step works on whole runs of memory.
Comparisons of bytes tell which they are: ``topk(2)`` sorts every four by itself, ``where`` goes one by one.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from workers.training.exchange.codecs import Scaled

_BLOCK = 256
_LANE = _BLOCK // 4


class TwoFour(Scaled):
    """Whole numbers from -127 to 127 for the two of each four (a, b, c, d) that are largest by amount.

    Of a block come 64 codes of the firsts, 64 of the seconds, and 32 bytes that tell of two fours each which they are.
    """

    name: ClassVar[str] = "two_four"
    block: ClassVar[int] = _BLOCK
    has_error: ClassVar[bool] = True
    blurs_norm: ClassVar[bool] = True
    largest: ClassVar[float] = 127.0

    def num_code_bytes(self, numel: int) -> int:
        return numel // _BLOCK * (2 * _LANE + _LANE // 2)

    def _encode(
        self, values_PE: torch.Tensor, codes_PC: torch.Tensor, scales_P: torch.Tensor, error_PE: torch.Tensor | None
    ) -> None:
        scaled_PE = self._scaled(values_PE, scales_P).round_()
        lanes_4PL = torch.empty(4, scales_P.numel(), _LANE, dtype=torch.int8, device=values_PE.device)
        lanes_4PL.copy_(_by_lane(scaled_PE))
        kept_4PL = _kept(lanes_4PL)
        lanes_4PL &= kept_4PL
        a, b, c, d = lanes_4PL
        has_a, _, _, has_d = kept_4PL
        codes_PC[:, :_LANE].view(torch.int8).copy_(a | (b & ~has_a) | (c & has_d))
        codes_PC[:, _LANE : 2 * _LANE].view(torch.int8).copy_((b & has_a) | (c & ~has_d) | d)
        bits_PL = -torch.add(kept_4PL[0] + 2 * kept_4PL[1], kept_4PL[2] + 2 * kept_4PL[3], alpha=4)
        codes_PC[:, 2 * _LANE :].view(torch.int8).copy_(bits_PL[:, : _LANE // 2] + 16 * bits_PL[:, _LANE // 2 :])
        if error_PE is not None:
            _by_lane(scaled_PE).copy_(lanes_4PL)
            torch.addcmul(values_PE, scaled_PE, scales_P.unsqueeze(-1), value=-1.0, out=error_PE)

    def _unpack(self, codes_RC: torch.Tensor, values_RKE: torch.Tensor) -> None:
        for codes_C, values_KE in zip(codes_RC, values_RKE, strict=True):
            codes_KB = codes_C.view(values_KE.shape[0], -1)
            first_KL = codes_KB[:, :_LANE].view(torch.int8)
            second_KL = codes_KB[:, _LANE : 2 * _LANE].view(torch.int8)
            packed_KH = codes_KB[:, 2 * _LANE :]
            bits_KL = torch.cat((packed_KH & 15, packed_KH >> 4), dim=1).view(torch.int8)
            has_a, has_b, has_c, has_d = (-(bits_KL >> place & 1) for place in range(4))
            lanes_4KL = _by_lane(values_KE)
            lanes_4KL[0] = first_KL & has_a
            lanes_4KL[1] = has_b & ((first_KL & ~has_a) | (second_KL & has_a))
            lanes_4KL[2] = has_c & ((first_KL & has_d) | (second_KL & ~has_d))
            lanes_4KL[3] = second_KL & has_d


def _by_lane(values_PE: torch.Tensor) -> torch.Tensor:
    """A view of blocks as their four quarters: (4, blocks, 64)."""
    return values_PE.view(-1, 4, _LANE).transpose(0, 1)


def _kept(lanes_4PL: torch.Tensor) -> torch.Tensor:
    """All bits (-1) where one of a four is among its two largest by amount, of equals the earlier; else none."""
    a, b, c, d = lanes_4PL.abs()
    is_b, is_d = b > a, d > c
    is_ab = torch.minimum(a, b) >= torch.maximum(c, d)
    is_cd = torch.minimum(c, d) > torch.maximum(a, b)
    has_four = (is_ab | ~(is_b | is_cd), is_ab | (is_b & ~is_cd), is_cd | ~(is_d | is_ab), is_cd | (is_d & ~is_ab))
    return torch.stack(has_four).view(torch.int8).neg_()

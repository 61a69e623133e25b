"""Number formats for gradients on their way: how fp32 values become bytes and values again.

Every format scales by blocks, so that one large value costs the precision of its neighbours only. A value that is not
finite makes its whole block not finite wherever it is decoded; a block of zeros stays one.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch

from workers.training.exchange.fused import kernels_for

_SCALE_BYTES = 4
_BLOCKS = 512  # at a time on a CPU: what is written stays in the cache until it is read again
_LEAST = 1e-36  # the reciprocal of what lies below it might overflow; a block of none above it is a block of zeros


class Codec(Protocol):
    """One format. Rows are encoded by themselves: each travels to a rank of its own.

    ``has_error``: what it leaves out is worth keeping for the next round. ``blurs_norm``: and is so much that the norm
    of a sum tells little of the sum's own.
    """

    name: ClassVar[str]
    block: ClassVar[int]
    has_error: ClassVar[bool]
    blurs_norm: ClassVar[bool]

    def num_bytes(self, numel: int) -> int:
        """Bytes of ``numel`` values, a multiple of ``block``."""
        ...

    def encode(self, values_RN: torch.Tensor, out_RB: torch.Tensor, error_RN: torch.Tensor | None) -> None:
        """Write the bytes (uint8) of contiguous fp32 rows, and what they leave out, where that is wanted."""
        ...

    def decode(self, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
        """Write the values that ``encode``'s bytes stand for."""
        ...


class Exact:
    """Values as they are."""

    name: ClassVar[str] = "none"
    block: ClassVar[int] = 4
    has_error: ClassVar[bool] = False
    blurs_norm: ClassVar[bool] = False

    def num_bytes(self, numel: int) -> int:
        return 4 * numel

    def encode(self, values_RN: torch.Tensor, out_RB: torch.Tensor, error_RN: torch.Tensor | None) -> None:
        out_RB.view(torch.float32).copy_(values_RN)
        if error_RN is not None:
            error_RN.zero_()

    def decode(self, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
        out_RN.copy_(payload_RB.view(torch.float32))


class Bf16:
    """The upper half of each fp32 value, rounded to nearest: 8 bits of precision, the whole range."""

    name: ClassVar[str] = "bf16"
    block: ClassVar[int] = 4
    has_error: ClassVar[bool] = False
    blurs_norm: ClassVar[bool] = False

    def num_bytes(self, numel: int) -> int:
        return 2 * numel

    def encode(self, values_RN: torch.Tensor, out_RB: torch.Tensor, error_RN: torch.Tensor | None) -> None:
        codes_RN = out_RB.view(torch.bfloat16)
        codes_RN.copy_(values_RN)
        if error_RN is not None:
            torch.sub(values_RN, codes_RN, out=error_RN)

    def decode(self, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
        out_RN.copy_(payload_RB.view(torch.bfloat16))


class Scaled:
    """Codes after a division by the largest value of each block; the scales follow the codes.

    ``largest`` is the code of a block's largest value. On CUDA, with Triton, each way is one kernel.
    """

    name: ClassVar[str]
    has_error: ClassVar[bool]
    block: ClassVar[int] = 256
    blurs_norm: ClassVar[bool] = False
    largest: ClassVar[float]

    def num_bytes(self, numel: int) -> int:
        return self.num_code_bytes(numel) + numel // self.block * _SCALE_BYTES

    def encode(self, values_RN: torch.Tensor, out_RB: torch.Tensor, error_RN: torch.Tensor | None) -> None:
        if (kernels := kernels_for(values_RN.device, self.name)) is not None:
            return kernels.encode(self.name, self.largest, values_RN, out_RB, error_RN)
        codes_RC, scales_RK = self._parts(out_RB, values_RN.shape[1])
        most = _BLOCKS if values_RN.device.type == "cpu" else max(1, scales_RK.shape[1])
        for row, (values_N, codes_C, scales_K) in enumerate(zip(values_RN, codes_RC, scales_RK, strict=True)):
            values_KE, codes_KC = values_N.view(-1, self.block), codes_C.view(scales_K.shape[0], -1)
            error_KE = None if error_RN is None else error_RN[row].view_as(values_KE)
            for begin in range(0, scales_K.shape[0], most):
                piece = slice(begin, begin + most)
                error_PE = None if error_KE is None else error_KE[piece]
                self._encode(values_KE[piece], codes_KC[piece], scales_K[piece], error_PE)
        return None

    def _encode(
        self, values_PE: torch.Tensor, codes_PC: torch.Tensor, scales_P: torch.Tensor, error_PE: torch.Tensor | None
    ) -> None:
        scaled_PE = self._rounded(self._scaled(values_PE, scales_P))
        if error_PE is not None:
            torch.addcmul(values_PE, scaled_PE, scales_P.unsqueeze(-1), value=-1.0, out=error_PE)
        self._pack(scaled_PE, codes_PC)

    def _scaled(self, values_PE: torch.Tensor, scales_P: torch.Tensor) -> torch.Tensor:
        """Write the scales, and return the values in units of them."""
        largest_P = values_PE.abs().amax(-1)
        scales_P.copy_(largest_P.div_(self.largest))
        inverse_P = torch.where(scales_P < _LEAST, 0.0, scales_P.reciprocal())
        return values_PE * inverse_P.unsqueeze(-1)

    def decode(self, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
        if (kernels := kernels_for(out_RN.device, self.name)) is not None:
            return kernels.decode(self.name, payload_RB, out_RN)
        codes_RC, scales_RK = self._parts(payload_RB, out_RN.shape[1])
        values_RKE = out_RN.view(out_RN.shape[0], -1, self.block)
        self._unpack(codes_RC, values_RKE)
        values_RKE.mul_(scales_RK.unsqueeze(-1))
        return None

    def _parts(self, payload_RB: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        num_code_bytes = self.num_code_bytes(numel)
        return payload_RB[:, :num_code_bytes], payload_RB[:, num_code_bytes:].view(torch.float32)

    def num_code_bytes(self, numel: int) -> int:
        """Bytes of the codes alone."""
        raise NotImplementedError

    def _rounded(self, scaled_RKE: torch.Tensor) -> torch.Tensor:
        """In place."""
        return scaled_RKE.round_()

    def _pack(self, scaled_RKE: torch.Tensor, codes_RC: torch.Tensor) -> None:
        raise NotImplementedError

    def _unpack(self, codes_RC: torch.Tensor, values_RKE: torch.Tensor) -> None:
        raise NotImplementedError


class Fp16(Scaled):
    """Half precision of values up to 1: 11 bits, no overflow, whatever their range."""

    name: ClassVar[str] = "fp16"
    has_error: ClassVar[bool] = False
    largest: ClassVar[float] = 1.0

    def num_code_bytes(self, numel: int) -> int:
        return 2 * numel

    def _rounded(self, scaled_RKE: torch.Tensor) -> torch.Tensor:
        return scaled_RKE.copy_(scaled_RKE.half())

    def _pack(self, scaled_RKE: torch.Tensor, codes_RC: torch.Tensor) -> None:
        codes_RC.view(torch.float16).view_as(scaled_RKE).copy_(scaled_RKE)

    def _unpack(self, codes_RC: torch.Tensor, values_RKE: torch.Tensor) -> None:
        values_RKE.copy_(codes_RC.view(torch.float16).view_as(values_RKE))


class Int8(Scaled):
    """Whole numbers from -127 to 127."""

    name: ClassVar[str] = "int8"
    has_error: ClassVar[bool] = True
    largest: ClassVar[float] = 127.0

    def num_code_bytes(self, numel: int) -> int:
        return numel

    def _pack(self, scaled_RKE: torch.Tensor, codes_RC: torch.Tensor) -> None:
        codes_RC.view(torch.int8).view_as(scaled_RKE).copy_(scaled_RKE)

    def _unpack(self, codes_RC: torch.Tensor, values_RKE: torch.Tensor) -> None:
        values_RKE.copy_(codes_RC.view(torch.int8).view_as(values_RKE))


class Int4(Scaled):
    """Whole numbers from -7 to 7, two a byte: a block's first half in the lower bits, its second half in the upper."""

    name: ClassVar[str] = "int4"
    has_error: ClassVar[bool] = True
    blurs_norm: ClassVar[bool] = True
    largest: ClassVar[float] = 7.0

    def num_code_bytes(self, numel: int) -> int:
        return numel // 2

    def _pack(self, scaled_RKE: torch.Tensor, codes_RC: torch.Tensor) -> None:
        half = self.block // 2
        lower_RKH, upper_RKH = scaled_RKE[..., :half], scaled_RKE[..., half:]
        # 8 and 128: so both halves are positive, and their sum is a byte.
        codes_RC.view_as(lower_RKH).copy_(torch.add(lower_RKH, upper_RKH, alpha=16.0).add_(136.0))

    def _unpack(self, codes_RC: torch.Tensor, values_RKE: torch.Tensor) -> None:
        half = self.block // 2
        codes_RKH = codes_RC.view(*values_RKE.shape[:2], half)
        values_RKE[..., :half].copy_(codes_RKH & 15)
        values_RKE[..., half:].copy_(codes_RKH >> 4)
        values_RKE.sub_(8.0)

"""Whether a device has fused kernels for number formats: on CUDA, where Triton is there and can compile."""

from __future__ import annotations

import threading
from typing import Protocol

import torch

_lock = threading.Lock()
_found: dict[torch.device, Kernels | None] = {}


class Kernels(Protocol):
    """The module ``kernels``, which imports Triton."""

    def encode(
        self,
        kind: str,
        largest: float,
        values_RN: torch.Tensor,
        out_RB: torch.Tensor,
        error_RN: torch.Tensor | None,
    ) -> None:
        """As ``Codec.encode`` of the format ``kind``; ``largest`` is the code of a block's largest value."""
        ...

    def decode(self, kind: str, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
        """As ``Codec.decode`` of the format ``kind``."""
        ...


def kernels_for(device: torch.device) -> Kernels | None:
    """Those for tensors of this device; None where torch's operators have to do.

    The first call for a CUDA device tries one, which compiles it: a second, or less where that was done before.
    """
    if device.type != "cuda":
        return None
    with _lock:
        if device not in _found:
            _found[device] = _tried(device)
        return _found[device]


def _tried(device: torch.device) -> Kernels | None:
    try:
        from workers.training.exchange import kernels

        payload_1B = torch.zeros(1, 260, dtype=torch.uint8, device=device)
        kernels.decode("int8", payload_1B, torch.empty(1, 256, dtype=torch.float32, device=device))
    except Exception as error:  # no Triton, no compiler for it, a GPU too old for it: each its own
        told = str(error).strip().split("\n", 1)[0]
        print(f"gradients are encoded by torch's operators, without Triton: {type(error).__name__}: {told}", flush=True)
        return None
    return kernels

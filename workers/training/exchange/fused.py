"""Whether a device has fused kernels for number formats: on CUDA, where Triton is there and can compile."""

from __future__ import annotations

import threading
from typing import Protocol

import torch

_lock = threading.Lock()
_found: dict[tuple[torch.device, str], Kernels | None] = {}


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


def kernels_for(device: torch.device, kind: str) -> Kernels | None:
    """Those for tensors of this device in the format ``kind``; None where torch's operators have to do.

    The first call for a CUDA device tries them, which compiles them: a second or two, less where that was done before.
    """
    if device.type != "cuda":
        return None
    with _lock:
        if (device, kind) not in _found:
            _found[device, kind] = _tried(device, kind)
        return _found[device, kind]


def _tried(device: torch.device, kind: str) -> Kernels | None:
    try:
        from workers.training.exchange import kernels

        values_1N = torch.zeros(1, 256, dtype=torch.float32, device=device)
        payload_1B = torch.empty(1, 1024, dtype=torch.uint8, device=device)
        kernels.encode(kind, 1.0, values_1N, payload_1B, torch.empty_like(values_1N))
        kernels.decode(kind, payload_1B, values_1N)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no Triton, no compiler for it, a GPU too old for it: each its own
        told = str(error).strip().split("\n", 1)[0]
        print(f"{kind} is encoded by torch's operators, without Triton: {type(error).__name__}: {told}", flush=True)
        return None
    return kernels

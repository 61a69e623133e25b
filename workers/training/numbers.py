"""Number formats by their names in safetensors, and a tensor's bytes without a copy."""

from __future__ import annotations

import torch

from workers.errors import CheckpointError

NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}
FORMATS = {name: dtype for dtype, name in NAMES.items()}


def number_name(tensor: torch.Tensor, place: str) -> str:
    """The format's name. Raises CheckpointError that names the place of a tensor that is not plain numbers."""
    name = NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided:
        raise CheckpointError(
            f"{place} is a tensor of {tensor.dtype} ({tensor.layout}), which a checkpoint cannot hold; "
            f"use a dense one of {', '.join(sorted(NAMES.values()))}"
        )
    return name


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's numbers in order; they live as long as this is held, and change with the tensor."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def tensor_of(data: bytearray, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor over these bytes, which are its own from here on."""
    if not data:
        return torch.empty(shape, dtype=FORMATS[dtype])
    return torch.frombuffer(data, dtype=FORMATS[dtype]).reshape(shape)

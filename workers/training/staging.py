"""Memory that snapshots are copied to, used again from one checkpoint to the next.

Fresh memory costs many times more than the copy itself: the first touch of every page on a CPU, the pinning that
a fast copy from a GPU needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

Place: TypeAlias = tuple[int | str, ...]


class Staging:
    """Buffers of one snapshot, by place and form. Whoever has it may read them until it copies again."""

    def __init__(self) -> None:
        self._buffers: dict[Place, torch.Tensor] = {}

    def copy(self, value: Any) -> Any:
        """The same structure, with every tensor a copy on the CPU; returns when all are made.

        Tensors of one memory and form, such as tied parameters, share a copy.
        """
        copying = _Copying(self._buffers)
        copied = copying.copied(value, ())
        self._buffers = copying.used
        for device in copying.devices:
            torch.accelerator.synchronize(device)
        return copied


class _Copying:
    def __init__(self, buffers: Mapping[Place, torch.Tensor]) -> None:
        self._buffers = buffers
        self._seen: dict[object, torch.Tensor] = {}
        self.used: dict[Place, torch.Tensor] = {}
        self.devices: set[torch.device] = set()

    def copied(self, value: Any, place: Place) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach(), place)
        if isinstance(value, Mapping):
            return {key: self.copied(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.copied(item, (*place, i)) for i, item in enumerate(value))
        return value

    def _tensor(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        if value.layout is not torch.strided:
            return value.to("cpu", copy=True)  # the writer refuses it, and tells where it stands
        identity = (value.data_ptr(), value.device, value.dtype, value.shape, value.stride())
        if value.numel() and identity in self._seen:
            return self._seen[identity]
        buffer = self._buffers.get(place)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.device.type == "cuda")
        buffer.copy_(value, non_blocking=True)
        if value.device.type != "cpu":
            self.devices.add(value.device)
        self.used[place] = self._seen[identity] = buffer
        return buffer

"""Memory that snapshots are copied to, used again from one checkpoint to the next.

Fresh memory costs many times more than the copy itself: the first touch of every page on a CPU, the pinning that
a fast copy from a GPU needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Place: TypeAlias = tuple[int | str, ...]


class Staging:
    """Buffers of one snapshot, by place and form. Whoever has it may read them until it copies again."""

    def __init__(self) -> None:
        self._buffers: dict[Place, torch.Tensor] = {}

    def prepare(self, wanted: Mapping[Place, Form]) -> None:
        """Take memory before it is needed, and touch all of it; slow, so not for the training thread."""
        self._buffers = {place: form.buffer().zero_() for place, form in wanted.items()}

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


@dataclass(frozen=True, slots=True)
class Form:
    """What a buffer must be like; one that is copied to from a GPU is pinned."""

    shape: torch.Size
    dtype: torch.dtype
    is_pinned: bool

    def buffer(self) -> torch.Tensor:
        """Memory that nothing has been written to."""
        return torch.empty(self.shape, dtype=self.dtype, pin_memory=self.is_pinned)


def form_of(value: torch.Tensor) -> Form:
    """The form of a copy of this tensor."""
    return Form(value.shape, value.dtype, value.device.type == "cuda")


def forms(value: Any, place: Place = ()) -> dict[Place, Form]:
    """What a copy of this structure needs; reads no numbers."""
    if isinstance(value, torch.Tensor):
        return {place: form_of(value)} if value.layout is torch.strided else {}
    if isinstance(value, Mapping):
        return {at: form for key, item in value.items() for at, form in forms(item, (*place, key)).items()}
    if isinstance(value, list | tuple):
        return {at: form for i, item in enumerate(value) for at, form in forms(item, (*place, i)).items()}
    return {}


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
        if buffer is None or form_of(value) != Form(buffer.shape, buffer.dtype, buffer.is_pinned()):
            buffer = form_of(value).buffer()
        buffer.copy_(value, non_blocking=True)
        if value.device.type != "cpu":
            self.devices.add(value.device)
        self.used[place] = self._seen[identity] = buffer
        return buffer

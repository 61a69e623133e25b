"""Giving a member's state to newcomers, over the group's own links."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workers.training.world import World

CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands for a tensor in the structure that is sent ahead of the tensors."""

    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def send(world: World, state: Mapping[str, Any]) -> None:
    """Give every other rank a structure of mappings, lists and tensors; they call ``receive``. Raises WorldError."""
    tensors: list[torch.Tensor] = []
    structure = pickle.dumps(_taken_apart(state, tensors))
    header = torch.frombuffer(bytearray(structure), dtype=torch.uint8).to(world.device)
    world.broadcast(torch.tensor([len(header)], device=world.device), world.rank)
    world.broadcast(header, world.rank)
    with torch.no_grad():
        for group in _chunks([(t.dtype, tuple(t.shape)) for t in tensors]):
            parts = [_bytes_of(tensors[i]).to(world.device) for i in group]
            chunk = parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)
            if chunk.numel():
                world.broadcast(chunk, world.rank)


def receive(world: World, source: int) -> dict[str, Any]:
    """Take the structure that rank ``source`` sends; its tensors are fresh ones. Raises WorldError."""
    size = torch.zeros(1, dtype=torch.int64, device=world.device)
    world.broadcast(size, source)
    header = torch.zeros(int(size.item()), dtype=torch.uint8, device=world.device)
    world.broadcast(header, source)
    structure = pickle.loads(bytes(header.cpu().numpy()))  # from a worker of the same job, running the same code
    places = sorted(_places(structure), key=lambda place: place.number)
    tensors: list[torch.Tensor] = []
    for group in _chunks([(p.dtype, p.shape) for p in places]):
        sizes = [_num_bytes(places[i].dtype, places[i].shape) for i in group]
        chunk = torch.empty(sum(sizes), dtype=torch.uint8, device=world.device)
        if chunk.numel():
            world.broadcast(chunk, source)
        for i, part in zip(group, torch.split(chunk, sizes), strict=True):
            tensors.append(part.clone().view(places[i].dtype).view(places[i].shape))
    whole: dict[str, Any] = _put_together(structure, tensors)
    return whole


def _chunks(kinds: list[tuple[torch.dtype, tuple[int, ...]]]) -> list[list[int]]:
    """Which tensors travel in one broadcast; both sides compute the same. Empty ones travel in none's stead."""
    groups: list[list[int]] = []
    room = 0
    for i, (dtype, shape) in enumerate(kinds):
        size = _num_bytes(dtype, shape)
        if not groups or size > room:
            groups.append([])
            room = CHUNK_BYTES
        groups[-1].append(i)
        room -= size
    return groups


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _taken_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, value.dtype, tuple(value.shape))
    if isinstance(value, Mapping):
        return {key: _taken_apart(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_taken_apart(item, tensors) for item in value)
    return value


def _places(value: Any) -> list[_Place]:
    if isinstance(value, _Place):
        return [value]
    if isinstance(value, Mapping):
        return [place for item in value.values() for place in _places(item)]
    if type(value) in (list, tuple):
        return [place for item in value for place in _places(item)]
    return []


def _put_together(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, Mapping):
        return {key: _put_together(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_together(item, tensors) for item in value)
    return value

"""A snapshot laid out as pieces: which of its tensors are in storage already, and where the others will lie."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from workers.checkpoints import NOWHERE, PIECES, Entry, Manifest, Path
from workers.errors import CheckpointError
from workers.storage import Data
from workers.training.numbers import bytes_of, number_name
from workers.training.plain import plain_state
from workers.training.state import StateSnapshot

_ALIGNMENT = 64
_EMPTY_SHA256 = hashlib.sha256().hexdigest()


class Unwanted(Exception):
    """The save was abandoned meanwhile."""


@dataclass(slots=True)
class Piece:
    """New bytes to write: ``parts`` end to end, each at a multiple of 64."""

    key: str
    parts: list[Data] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, data: memoryview) -> int:
        """Where the data will lie."""
        if gap := -self.size_bytes % _ALIGNMENT:
            self.parts.append(bytes(gap))
        offset = self.size_bytes + gap
        self.parts.append(data)
        self.size_bytes = offset + len(data)
        return offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A whole snapshot: where everything lies, ``pieces`` by size, and the ``new`` ones among them."""

    weights: Mapping[str, Entry]
    state: Mapping[Path, Entry]
    residual: Mapping[str, Entry]
    skeleton: Entry
    pieces: Mapping[str, int]
    new: tuple[Piece, ...]

    @property
    def entries(self) -> list[Entry]:
        """Everything that a restore reads."""
        return [self.skeleton, *self.weights.values(), *self.state.values(), *self.residual.values()]

    @property
    def size_bytes(self) -> int:
        """What a restore reads."""
        return sum({(e.piece, e.offset): e.size_bytes for e in self.entries}.values())


@dataclass(frozen=True, slots=True)
class _Item:
    data: memoryview
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    is_frozen: bool


def lay_out(snapshot: StateSnapshot, save: str, base: Manifest | None, is_wanted: Callable[[], bool]) -> Layout:
    """Find what changed since ``base`` by checksum, and give it a place in new pieces of the save ``save``.

    A piece of the base that would be needed for less than half of its bytes is let go: what is still needed of it is
    written once more, apart from what changes, so that storage never holds twice what it must.
    Raises CheckpointError for state that a checkpoint cannot hold, Unwanted.
    """
    items = dict(_items(snapshot, is_wanted))
    known = _worthwhile(base, {item.sha256 for item in items.values()})
    once_more = {entry.sha256 for entry in base.entries} if base else set()
    pieces = {kind: Piece(f"{PIECES}/{save}.{kind}") for kind in ("still", "moving")}
    found = {_EMPTY_SHA256: (NOWHERE, 0), **known}
    entries: dict[tuple[str, Path], Entry] = {}
    for place, item in items.items():
        if item.sha256 not in found:
            piece = pieces["still" if item.is_frozen or item.sha256 in once_more else "moving"]
            found[item.sha256] = (piece.key, piece.add(item.data))
        key, offset = found[item.sha256]
        entries[place] = Entry(
            dtype=item.dtype,
            shape=item.shape,
            piece=key,
            offset=offset,
            size_bytes=len(item.data),
            sha256=item.sha256,
        )
    new = tuple(piece for piece in pieces.values() if piece.size_bytes)
    sizes = {piece.key: piece.size_bytes for piece in new}
    if base is not None:
        sizes |= {piece: base.pieces[piece] for piece, _ in known.values()}
    return Layout(
        weights={str(path[0]): entry for (part, path), entry in entries.items() if part == "weights"},
        state={path: entry for (part, path), entry in entries.items() if part == "state"},
        residual={str(path[0]): entry for (part, path), entry in entries.items() if part == "residual"},
        skeleton=entries["skeleton", ()],
        pieces=sizes,
        new=new,
    )


def _worthwhile(base: Manifest | None, wanted: set[str]) -> dict[str, tuple[str, int]]:
    """Where the base has what is wanted, in pieces that are worth keeping for it."""
    if base is None:
        return {}
    live = {e.sha256: e for e in base.entries if e.sha256 in wanted and e.piece != NOWHERE}
    live_bytes: Counter[str] = Counter()
    for entry in live.values():
        live_bytes[entry.piece] += entry.size_bytes
    return {
        digest: (entry.piece, entry.offset)
        for digest, entry in live.items()
        if 2 * live_bytes[entry.piece] >= base.pieces[entry.piece]
    }


def _items(snapshot: StateSnapshot, is_wanted: Callable[[], bool]) -> Iterator[tuple[tuple[str, Path], _Item]]:
    check_model(snapshot.model)
    for name, value in snapshot.model.items():
        yield ("weights", (name,)), _item(value, _place(name), is_wanted, name in snapshot.frozen)
    tensors: dict[Path, torch.Tensor] = {}
    skeleton = {
        "optimizer": _without_tensors(plain_state(snapshot.optimizer), (), tensors),
        "scaler": plain_state(snapshot.scaler, "scaler"),
        "noise": snapshot.noise,
        "round": snapshot.round,
        "cursor": snapshot.cursor,
        "surplus": snapshot.surplus,
    }
    for path, value in tensors.items():
        place = "optimizer" + "".join(f"[{part!r}]" for part in path)
        yield ("state", path), _item(value, place, is_wanted)
    for name, value in snapshot.residual.items():
        yield ("residual", (name,)), _item(value, f"what was left out of {name!r}", is_wanted)
    file = io.BytesIO()
    torch.save(skeleton, file)
    text = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    yield ("skeleton", ()), _item(text, "the skeleton", is_wanted)


def check_model(state: Mapping[str, Any]) -> None:
    """Raises CheckpointError where the state of a model has what a checkpoint cannot hold."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(
                f"{_place(name)} is a {type(value).__name__}; weights can hold tensors only, "
                "so make it a buffer or leave it out of state_dict"
            )
        number_name(value, _place(name))


def _place(name: str) -> str:
    return f"the model's state {name!r}"


def _item(tensor: torch.Tensor, place: str, is_wanted: Callable[[], bool], is_frozen: bool = False) -> _Item:
    if not is_wanted():
        raise Unwanted
    dtype = number_name(tensor, place)
    data = bytes_of(tensor)
    # Neither this nor the writing holds the interpreter's lock, so that training goes on meanwhile.
    digest = hashlib.sha256(data).hexdigest()
    return _Item(data, dtype, tuple(tensor.shape), digest, is_frozen)


def _without_tensors(value: Any, path: Path, tensors: dict[Path, torch.Tensor]) -> Any:
    """The same structure with None for each tensor, which goes to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return None
    if isinstance(value, Mapping):
        return {key: _without_tensors(item, (*path, key), tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_tensors(item, (*path, i), tensors) for i, item in enumerate(value))
    return value


def with_tensors(value: Any, path: Path, tensors: Mapping[Path, torch.Tensor]) -> Any:
    """What ``lay_out`` took apart, whole again."""
    if path in tensors:
        return tensors[path]
    if isinstance(value, Mapping):
        return {key: with_tensors(item, (*path, key), tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_tensors(item, (*path, i), tensors) for i, item in enumerate(value))
    return value

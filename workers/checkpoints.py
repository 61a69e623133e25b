"""The form of checkpoints in storage, readable without torch.

    manifests/<name>.json           a complete checkpoint: what it is, and where each of its tensors lies
    pieces/<name>.<id>.<kind>       tensors end to end, as the save <id> of checkpoint <name> found them changed
    drafts/<name>.<id>.json         the manifest of a save that is under way
    damaged/<name>.json             what was found to be damaged, and how

A checkpoint is complete once its manifest is there, which is written last. Tensors that did not change since an
earlier checkpoint are not written again: the manifest names the piece of an earlier save, which therefore
lives as long as a manifest names it (``workers.retention``). Every manifest and every tensor has a checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from workers.errors import CheckpointError
from workers.status import CheckpointInfo
from workers.storage import ObjectError, Storage, read, reading

MANIFESTS, PIECES, DRAFTS, DAMAGED = "manifests", "pieces", "drafts", "damaged"

NOWHERE = ""
"""The piece of a tensor without numbers."""

_SUFFIX = ".json"
_CHUNK_BYTES = 4 * 2**20

Path: TypeAlias = tuple[int | str, ...]
"""Where a tensor stands in the optimizer's nested state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: its format (a safetensors name), shape, and the bytes of a piece that hold it."""

    dtype: str
    shape: tuple[int, ...]
    piece: str
    offset: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole checkpoint; ``pieces`` maps the keys of all pieces that it needs to their sizes in bytes.

    ``weights`` are parameters and buffers by their names in the model. ``state`` are the tensors of the
    optimizer's state and ``skeleton`` is the rest of it (``torch.save``, None where a tensor stands).
    ``plan`` holds the plan's sections for whoever reads it later. ``residual`` is what compression left out of
    gradients so far, by parameter, to be added to the next mean gradient; empty where nothing was.
    """

    info: CheckpointInfo
    plan: Mapping[str, Any]
    weights: Mapping[str, Entry]
    state: Mapping[Path, Entry]
    skeleton: Entry
    pieces: Mapping[str, int]
    residual: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        """Everything that a restore reads."""
        return [self.skeleton, *self.weights.values(), *self.state.values(), *self.residual.values()]


def checkpoint_name(attempt: int, lineage: int, round: int, generation: int) -> str:
    """The name of one checkpoint; sorts as its parts do."""
    return f"{attempt:04d}-{lineage:04d}-{round:09d}-{generation:05d}"


def manifest_key(name: str) -> str:
    """The object that makes a checkpoint complete."""
    return f"{MANIFESTS}/{name}{_SUFFIX}"


def draft_key(save: str) -> str:
    """The announced manifest of a save, ``<name>.<id>``."""
    return f"{DRAFTS}/{save}{_SUFFIX}"


def name_in(key: str) -> str:
    """The checkpoint's name in the key of a manifest, draft, note or piece."""
    return key.rpartition("/")[2].split(".")[0]


def attempt_of(name: str) -> int:
    """The attempt that saved a checkpoint, by its name."""
    return int(name.split("-", 1)[0])


def manifest_text(manifest: Manifest) -> str:
    """JSON, with its own checksum."""
    body = {
        "info": asdict(manifest.info),
        "plan": dict(manifest.plan),
        "weights": {name: asdict(entry) for name, entry in manifest.weights.items()},
        "state": [[list(path), asdict(entry)] for path, entry in manifest.state.items()],
        "skeleton": asdict(manifest.skeleton),
        "pieces": dict(manifest.pieces),
    }
    if manifest.residual:
        body["residual"] = {name: asdict(entry) for name, entry in manifest.residual.items()}
    text = json.dumps(body, allow_nan=False)
    return f'{{"sha256": "{_digest(text)}",\n"manifest": {text}}}'


def read_manifest(storage: Storage, name: str, key: str | None = None) -> Manifest | None:
    """The manifest of a checkpoint (or the object ``key``), None where there is none.

    Raises CheckpointError where it is damaged, ObjectError where it cannot be read, OSError where the storage fails.
    """
    key = key or manifest_key(name)
    try:
        with reading(storage, key):
            text = read(storage, key)
    except FileNotFoundError:
        return None
    try:
        document = json.loads(text)
        body = document["manifest"]
        if _digest(json.dumps(body, allow_nan=False)) != document["sha256"]:
            raise ValueError("it does not have its checksum")
        return _manifest_of(body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"the manifest of the checkpoint {name} in {storage.url} is damaged: {error}; take another checkpoint"
        ) from error


def checkpoint_names(storage: Storage) -> list[str]:
    """The checkpoints that have a manifest, oldest first; nothing is read."""
    return [name_in(key) for key in storage.keys(MANIFESTS) if key == manifest_key(name_in(key))]


def list_checkpoints(storage: Storage) -> list[CheckpointInfo]:
    """All complete checkpoints of a job with an intact manifest, oldest first; raises as ``read_manifest`` of one."""
    return _ordered(_info(storage, name) for name in checkpoint_names(storage))


def list_readable(storage: Storage) -> tuple[list[CheckpointInfo], frozenset[str]]:
    """As ``list_checkpoints``, and the names of those whose manifest cannot be read though that of others can.

    Raises OSError where none can be read: the storage may be away as a whole.
    """
    found: list[CheckpointInfo | None] = []
    unread: dict[str, ObjectError] = {}
    for name in checkpoint_names(storage):
        try:
            found.append(_info(storage, name))
        except ObjectError as error:
            unread[name] = error
    if unread and not any(found):
        raise next(iter(unread.values()))
    for name in tuple(unread):
        # Now that others answered: until then the storage may have been away.
        with suppress(ObjectError):
            found.append(_info(storage, name))
            del unread[name]
    return _ordered(found), frozenset(unread)


def damage(storage: Storage, name: str) -> str | None:
    """What is wrong with a complete checkpoint, None where all that a restore reads has its checksum.

    Reads all of its bytes. Raises ObjectError where a file of it cannot be read, which alone says nothing about the
    checkpoint, and OSError where the storage fails.
    """
    try:
        manifest = read_manifest(storage, name)
        if manifest is None:
            return "its manifest is missing"
        for _, _ in verified(storage, manifest.entries):
            pass
    except CheckpointError as error:
        return error.message
    return None


def verified(storage: Storage, entries: Sequence[Entry]) -> Iterator[tuple[Entry, bytearray]]:
    """Each entry's bytes, once a piece and a place, in the order in which they lie there.

    The bytes are the caller's. Raises CheckpointError where a piece is missing, cut short or damaged, ObjectError where
    it cannot be read.
    """
    places = {(e.piece, e.offset): e for e in entries}
    pieces: dict[str, list[Entry]] = {}
    for place in sorted(places):
        pieces.setdefault(place[0], []).append(places[place])
    for entry in pieces.pop(NOWHERE, []):
        yield entry, bytearray()
    for piece, inside in pieces.items():
        try:
            with reading(storage, piece):
                file = storage.open(piece)
        except FileNotFoundError:
            raise _damaged(storage, piece, "the piece is missing") from None
        with file:
            for entry in inside:
                with reading(storage, piece):
                    data, complaint = _read(file, entry)
                if complaint:
                    raise _damaged(storage, piece, complaint)
                yield entry, data


def _read(file: Any, entry: Entry) -> tuple[bytearray, str]:
    """An entry's bytes from its piece, and what is wrong with them, if anything."""
    file.seek(entry.offset)
    data = bytearray(entry.size_bytes)
    if _fill(file, data) < entry.size_bytes:
        return data, f"it ends before byte {entry.offset + entry.size_bytes}"
    if (seen := hashlib.sha256(data).hexdigest()) != entry.sha256:
        return data, f"the checksum from byte {entry.offset} on is {seen}, the manifest says {entry.sha256}"
    return data, ""


def _fill(file: Any, data: bytearray) -> int:
    view, num_read = memoryview(data), 0
    while num_read < len(view):
        num_new = file.readinto(view[num_read : num_read + _CHUNK_BYTES])
        if not num_new:
            break
        num_read += num_new
    return num_read


def _info(storage: Storage, name: str) -> CheckpointInfo | None:
    try:
        manifest = read_manifest(storage, name)
    except CheckpointError:
        return None
    return manifest.info if manifest is not None else None


def _ordered(infos: Iterable[CheckpointInfo | None]) -> list[CheckpointInfo]:
    return sorted((info for info in infos if info is not None), key=lambda info: info.order)


def _manifest_of(body: dict[str, Any]) -> Manifest:
    return Manifest(
        info=CheckpointInfo(**body["info"]),
        plan=body["plan"],
        weights={name: _entry_of(entry) for name, entry in body["weights"].items()},
        state={tuple(path): _entry_of(entry) for path, entry in body["state"]},
        skeleton=_entry_of(body["skeleton"]),
        pieces=body["pieces"],
        residual={name: _entry_of(entry) for name, entry in body.get("residual", {}).items()},
    )


def _entry_of(values: dict[str, Any]) -> Entry:
    return Entry(**{**values, "shape": tuple(values["shape"])})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _damaged(storage: Storage, piece: str, told: str) -> CheckpointError:
    return CheckpointError(f"{storage.url}/{piece} is damaged: {told}; take another checkpoint")

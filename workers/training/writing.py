"""Writing one checkpoint: announced, then its pieces, then its manifest, in the order that ``retention`` relies on."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from workers.checkpoints import Manifest, draft_key, manifest_key, manifest_text, read_manifest, verified
from workers.errors import CheckpointError, described
from workers.status import CheckpointInfo
from workers.storage import Data, ObjectError, Storage
from workers.training.pieces import Layout, Piece, Unwanted, lay_out
from workers.training.state import CheckpointHeader, StateSnapshot


class Wish:
    """Whether a save is still wanted, for its writer and for whoever abandons it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds = True

    def holds(self) -> bool:
        """Whether nobody has withdrawn it."""
        return self._holds

    def withdraw(self) -> None:
        """What it stands for does not happen after this returns."""
        with self._lock:
            self._holds = False

    def fulfil(self, act: Callable[[], object]) -> None:
        """Do it. Raises Unwanted where it was withdrawn."""
        with self._lock:
            if not self._holds:
                raise Unwanted
            act()


def write_checkpoint(
    storage: Storage, snapshot: StateSnapshot, header: CheckpointHeader, base: str | None, wish: Wish
) -> CheckpointInfo:
    """Write the snapshot; what did not change since the checkpoint ``base`` is taken from there.

    What is taken is read, and its checksums looked at: where one does not hold, everything is written anew.

    Raises Unwanted, CheckpointError and OSError; then nothing of it appears, and nothing is left where the storage
    still lets it be removed.
    """
    name = header.name
    present = _manifest_or_none(storage, name)
    if present is not None:
        return _amended(storage, present, header)
    save = f"{name}.{secrets.token_hex(4)}"
    pieces: tuple[Piece, ...] = ()
    try:
        layout = _announced(storage, snapshot, header, save, base, wish)
        pieces = layout.new
        for piece in pieces:
            storage.write(piece.key, _while_wanted(piece.parts, wish))
        manifest = _manifest(layout, header)
        wish.fulfil(lambda: storage.write(manifest_key(name), [manifest_text(manifest).encode()]))
        if storage.size(draft_key(save)) is None:
            raise CheckpointError("a newer checkpoint was completed meanwhile, and this one given up")
    except BaseException:
        with suppress(OSError):
            _take_back(storage, name, save, pieces)
        raise
    with suppress(OSError):
        storage.delete(draft_key(save))
    return manifest.info


def _announced(
    storage: Storage, snapshot: StateSnapshot, header: CheckpointHeader, save: str, base: str | None, wish: Wish
) -> Layout:
    """Lay the snapshot out and write the draft, so that nobody sweeps what it takes from the base."""
    known = _base_or_none(storage, base) if base else None
    layout = lay_out(snapshot, save, known, wish.holds)
    _draft(storage, layout, header, save)
    if known is None or _is_whole(storage, known, layout, wish):
        return layout
    layout = lay_out(snapshot, save, None, wish.holds)
    _draft(storage, layout, header, save)
    return layout


def _take_back(storage: Storage, name: str, save: str, pieces: tuple[Piece, ...]) -> None:
    """The manifest first, as what it names must be there as long as it is; another worker's of that name stays."""
    manifest = _manifest_or_none(storage, name)
    if manifest is not None and any(piece.key in manifest.pieces for piece in pieces):
        storage.delete(manifest_key(name))
    for key in (*(piece.key for piece in pieces), draft_key(save)):
        storage.delete(key)


def _draft(storage: Storage, layout: Layout, header: CheckpointHeader, save: str) -> None:
    text = manifest_text(_manifest(layout, header))
    storage.write(draft_key(save), [text.encode()])


def _is_whole(storage: Storage, base: Manifest, layout: Layout, wish: Wish) -> bool:
    """Whether the base is still complete, and what is taken from it has its checksums; reads all of that."""
    if storage.size(manifest_key(base.info.path)) is None:
        return False
    new = {piece.key for piece in layout.new}
    try:
        for _ in verified(storage, [entry for entry in layout.entries if entry.piece not in new]):
            if not wish.holds():
                raise Unwanted
    except (CheckpointError, OSError) as error:  # a bad sector must not fail every later save
        print(f"nothing is taken from the checkpoint {base.info.path}: {described(error)}", flush=True)
        return False
    return True


def _manifest(layout: Layout, header: CheckpointHeader) -> Manifest:
    info = CheckpointInfo(
        path=header.name,
        attempt=header.attempt,
        lineage=header.lineage,
        generation=header.generation,
        round=header.round,
        step=header.step,
        cursor=header.cursor,
        size_bytes=layout.size_bytes,
        written_bytes=sum(piece.size_bytes for piece in layout.new),
        metric=_finite(header.metric),
        is_final=header.is_final,
        created_at=time.time(),
        held_s=header.held_s,
        reason=header.reason,
        settings=header.settings,
        saves=header.saves,
        global_batch=_global_batch(header),
    )
    return Manifest(
        info=info,
        plan=header.plan_sections,
        weights=layout.weights,
        state=layout.state,
        residual=layout.residual,
        skeleton=layout.skeleton,
        pieces=layout.pieces,
    )


def _amended(storage: Storage, present: Manifest, header: CheckpointHeader) -> CheckpointInfo:
    """The same state saved again, as the last periodic and the final save may be: only the manifest changes."""
    info = replace(
        present.info,
        is_final=present.info.is_final or header.is_final,
        reason=header.reason if header.is_final else present.info.reason,
        metric=present.info.metric if _finite(header.metric) is None else header.metric,
        settings=header.settings,
        saves=header.saves,
        global_batch=_global_batch(header),
    )
    if info != present.info:
        changed = replace(present, info=info, plan=header.plan_sections)
        storage.write(manifest_key(info.path), [manifest_text(changed).encode()])
    return info


def _global_batch(header: CheckpointHeader) -> int:
    sections = header.plan_sections
    return int(sections.get("judged_batch") or sections.get("global_batch", 0))


def _manifest_or_none(storage: Storage, name: str) -> Manifest | None:
    try:
        return read_manifest(storage, name)
    except CheckpointError:  # a damaged one is no use; a new one takes its place
        return None


def _base_or_none(storage: Storage, name: str) -> Manifest | None:
    try:
        return _manifest_or_none(storage, name)
    except ObjectError as error:  # a bad sector must not fail every later save
        print(f"nothing is taken from the checkpoint {name}: {error}", flush=True)
        return None


def _while_wanted(parts: list[Data], wish: Wish) -> Iterator[Data]:
    for part in parts:
        if not wish.holds():
            raise Unwanted
        yield part


def _finite(metric: float | None) -> float | None:
    return metric if metric is not None and math.isfinite(metric) else None

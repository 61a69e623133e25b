"""Which checkpoints are kept, and when a piece that several share may go.

Savers and sweepers of one job may run at once, on several machines, without a lock: a worker that was taken for
dead may wake. So a saver announces by a draft which pieces it needs, and sees *then* that its base still
has its manifest; a sweeper removes manifests first, and looks *then* for drafts. Whichever came second sees the
other. A draft older than the newest checkpoint is withdrawn, and its save gives up when it finds that.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.checkpoints import (
    DAMAGED,
    DRAFTS,
    MANIFESTS,
    PIECES,
    Manifest,
    attempt_of,
    checkpoint_names,
    draft_key,
    list_checkpoints,
    manifest_key,
    name_in,
    read_manifest,
)
from workers.errors import CheckpointError
from workers.status import CheckpointInfo
from workers.storage import PART_SUFFIX, Storage

NUM_ASKED_KEPT = 2


def remove_superfluous(storage: Storage, keep: int, mode: str | None) -> None:
    """Delete all checkpoints but the newest ``keep``, the final ones, with a ``mode`` the best by metric, and what
    others asked for last.

    Also sweeps pieces that none of the kept needs, and what saves before the newest checkpoint left behind.
    Raises OSError where the storage fails; what is left is swept by the next call.
    """
    present = list_checkpoints(storage)
    if not present:
        return
    kept = {info.path for info in present[-keep:]} | {info.path for info in present if info.is_final}
    measured = [(info.metric, info.path) for info in present if info.metric is not None]
    if mode is not None and measured:
        kept.add((max if mode == "max" else min)(measured, key=lambda pair: pair[0])[1])
    kept |= _asked_for(present)
    for info in present:
        if info.path not in kept:
            storage.delete(manifest_key(info.path))
    _sweep(storage, present[-1].path)


def _asked_for(present: Sequence[CheckpointInfo]) -> set[str]:
    """The first checkpoint after each of the last requests: another job may be reading it."""
    met: dict[int, str] = {}
    for info in present:
        if info.saves > 0:
            met.setdefault(info.saves, info.path)
    return set(sorted(met.values())[-NUM_ASKED_KEPT:])


def remove_unfinished(storage: Storage, attempt: int) -> None:
    """Delete what saves of attempts up to this one left that were cut off; one that still goes on gives up.

    What a later attempt is saving stays, however late this is carried out. Raises OSError where the storage fails.
    """
    parts = [key for key in storage.keys(MANIFESTS) if key.endswith(PART_SUFFIX)]
    for key in [*storage.keys(DRAFTS), *parts]:
        if attempt_of(name_in(key)) <= attempt:
            storage.delete(key)
    _sweep_pieces(storage)


def _sweep(storage: Storage, newest: str) -> None:
    for key in [*storage.keys(DRAFTS), *storage.keys(DAMAGED), *storage.keys(MANIFESTS)]:
        is_unread = not key.startswith(MANIFESTS) or key.endswith(PART_SUFFIX)
        if is_unread and name_in(key) < newest:
            storage.delete(key)
    _sweep_pieces(storage)


def _sweep_pieces(storage: Storage) -> None:
    """Of a manifest that is not read as it was written all that it can name stays: the next look may read it well."""
    # Pieces before drafts before manifests: a save goes the other way, so that none falls between two looks.
    pieces = storage.keys(PIECES)
    saves = [_save_of(key) for key in storage.keys(DRAFTS)]
    needed = {piece for save in saves for piece in _announced(storage, save)}
    unread = ""
    for name in checkpoint_names(storage):
        try:
            needed |= _pieces(read_manifest(storage, name))
        except CheckpointError:
            unread = max(unread, name)
    under_way = tuple(f"{PIECES}/{save}." for save in saves)
    for piece in pieces:
        if piece not in needed and not piece.startswith(under_way) and name_in(piece) > unread:
            storage.delete(piece)


def _announced(storage: Storage, save: str) -> set[str]:
    try:
        return _pieces(read_manifest(storage, name_in(save), draft_key(save)))
    except CheckpointError:  # it is still being written: its save has yet to look for its base
        return set()


def _pieces(manifest: Manifest | None) -> set[str]:
    return set(manifest.pieces) if manifest is not None else set()


def _save_of(key: str) -> str:
    """``<name>.<id>`` of a draft."""
    return ".".join(key.rpartition("/")[2].split(".")[:2])

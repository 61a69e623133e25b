"""Reading checkpoints: whole, with every checksum looked at, or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import torch

from workers.checkpoints import Entry, Manifest, Path, read_manifest, verified
from workers.errors import CheckpointError
from workers.storage import Storage
from workers.storage_urls import open_storage
from workers.training.numbers import tensor_of
from workers.training.pieces import with_tensors
from workers.training.state import BATCH, OUTER, LoadedState

_NUM_NAMED = 3


def load_checkpoint(place: str) -> LoadedState:
    """Read a whole checkpoint to the CPU; ``place`` is the URL of the job's checkpoints, "/" and its name.

    Raises CheckpointError where it is missing or damaged, or the storage fails.
    """
    storage, manifest = _find(place)
    held = _Held(storage, manifest.entries, place)
    skeleton = torch.load(io.BytesIO(held.tensor(manifest.skeleton).numpy().tobytes()), weights_only=True)
    state: dict[Path, torch.Tensor] = {path: held.tensor(entry) for path, entry in manifest.state.items()}
    optimizer = with_tensors(skeleton["optimizer"], (), state)
    return LoadedState(
        model={name: held.tensor(entry) for name, entry in manifest.weights.items()},
        outer=optimizer.pop(OUTER, {}),
        batch=optimizer.pop(BATCH, None),
        optimizer=optimizer,
        scaler=skeleton["scaler"],
        noise=skeleton.get("noise"),  # older checkpoints have none
        is_of_changes=manifest.plan.get("exchange", {}).get("scheme") == "local_steps",
        residual={name: held.tensor(entry) for name, entry in manifest.residual.items()},
        round=skeleton["round"],
        cursor=skeleton["cursor"],
        surplus=skeleton.get("surplus", 0.0),  # as above
    )


def load_weights(place: str) -> dict[str, torch.Tensor]:
    """Read a checkpoint's parameters and buffers, by their names in the model, to the CPU.

    Raises CheckpointError as ``load_checkpoint`` does.
    """
    storage, manifest = _find(place)
    held = _Held(storage, list(manifest.weights.values()), place)
    return {name: held.tensor(entry) for name, entry in manifest.weights.items()}


def check_fits(model: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], origin: str) -> None:
    """Check that ``weights``, read from ``origin``, have the names and shapes of a model's ``state_dict``.

    Raises CheckpointError that names the first tensors that differ.
    """
    faults = [f"{n!r} is not in the checkpoint" for n in model if n not in weights]
    faults += [f"{n!r} is not in the model" for n in weights if n not in model]
    faults += [
        f"{n!r} is {list(weights[n].shape)} in the checkpoint and {list(t.shape)} in the model"
        for n, t in model.items()
        if n in weights and weights[n].shape != t.shape
    ]
    if faults:
        more = f" and {len(faults) - _NUM_NAMED} more" if len(faults) > _NUM_NAMED else ""
        raise CheckpointError(
            f"the checkpoint {origin} does not fit the model: {'; '.join(faults[:_NUM_NAMED])}{more}; "
            "use the entrypoint and config that it was written with, or start without it"
        )


def _find(place: str) -> tuple[Storage, Manifest]:
    url, _, name = place.rpartition("/")
    try:
        storage = open_storage(url)
        manifest = read_manifest(storage, name)
    except OSError as error:
        raise _unreadable(place, error) from error
    if manifest is None:
        raise CheckpointError(f"the checkpoint {place} is missing; take another one")
    return storage, manifest


class _Held:
    """The bytes of some entries, all in memory."""

    def __init__(self, storage: Storage, entries: Sequence[Entry], place: str) -> None:
        self._taken: set[tuple[str, int]] = set()
        try:
            self._read = {(entry.piece, entry.offset): data for entry, data in verified(storage, entries)}
        except OSError as error:
            raise _unreadable(place, error) from error

    def tensor(self, entry: Entry) -> torch.Tensor:
        """A tensor with memory of its own: equal ones lie in one place, and an optimizer changes each by itself."""
        place = (entry.piece, entry.offset)
        tensor = tensor_of(self._read[place], entry.dtype, entry.shape)
        if place in self._taken:
            return tensor.clone()
        self._taken.add(place)
        return tensor


def _unreadable(place: str, error: OSError) -> CheckpointError:
    return CheckpointError(f"the checkpoint {place} cannot be read: {error}; see to the storage")

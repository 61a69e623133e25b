"""Checkpoints: written beside the training, read back whole or not at all.

The form is told in ``workers.checkpoints``. A checkpoint is made in a hidden folder beside the others
and appears among them by one rename, after all of its bytes are on the disk.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from workers.checkpoints import (
    MANIFEST,
    STATE,
    WEIGHTS,
    file_sha256,
    folder_name,
    list_checkpoints,
    manifest_text,
    read_info,
    read_manifest,
)
from workers.errors import CheckpointError
from workers.status import CheckpointInfo
from workers.training.plain import plain_state
from workers.training.state import CheckpointHeader, LoadedState, StateSnapshot

UNFINISHED = ".unfinished"
_NUM_NAMED = 3


class CheckpointWriter:
    """Writes the checkpoints of one worker, one at a time, in a thread of its own.

    Kept are the newest ``keep``, the best by the metric (``mode``: max or min; ``metric`` None: there is no
    best) and every final one, whoever wrote them; others under ``root`` are removed after each save.
    """

    def __init__(self, root: Path, keep: int, metric: str | None, mode: str) -> None:
        self._root, self._keep, self._metric, self._mode = root, keep, metric, mode
        self._changed = threading.Condition()
        self._waiting: tuple[StateSnapshot, CheckpointHeader] | None = None
        self._is_writing = False
        self._epoch = 0  # grows with each abandon; a save begun in an older one must not appear
        self._done: list[CheckpointInfo] = []
        self._error: CheckpointError | None = None

    def save(self, snapshot: StateSnapshot, header: CheckpointHeader) -> None:
        """Take the snapshot, which is the writer's from here on, and return at once.

        While a save is being written one more may wait; a newer one takes the place of that.
        """
        with self._changed:
            if self._waiting is not None:
                skipped = self._waiting[1].step
                print(f"checkpoint of step {skipped} skipped: the one before it is still being written", flush=True)
            self._waiting = (snapshot, header)
            if not self._is_writing:
                self._is_writing = True
                threading.Thread(target=self._run, name="checkpoint-writer", daemon=True).start()

    def finished(self) -> list[CheckpointInfo]:
        """The checkpoints completed since the last call, oldest first."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was to be saved is on the disk.

        Raises CheckpointError where the newest save failed or is not done in time (it goes on then).
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_writing, timeout_s):
                raise CheckpointError(
                    f"a checkpoint was not written to {self._root} within {timeout_s:g} s; "
                    "see whether the storage is slow or stuck"
                )
            error, self._error = self._error, None
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Drop what waits and what is being written; no checkpoint appears from either after this returns."""
        with self._changed:
            self._waiting = None
            self._epoch += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                job, self._waiting, epoch = self._waiting, None, self._epoch
                if job is None:
                    self._is_writing = False
                    self._changed.notify_all()
                    return
            info, error = self._attempt(*job, epoch)
            with self._changed:
                self._error = error
                if info is not None:
                    self._done.append(info)

    def _attempt(
        self, snapshot: StateSnapshot, header: CheckpointHeader, epoch: int
    ) -> tuple[CheckpointInfo | None, CheckpointError | None]:
        try:
            info = self._write(snapshot, header, epoch)
        except (OSError, RuntimeError, SafetensorError, CheckpointError) as error:
            told = CheckpointError(
                f"the checkpoint of step {header.step} cannot be written to {self._root}: {error}; "
                "free space or correct the storage (the checkpoints before it are kept)"
            )
            print(told, flush=True)
            return None, told
        try:
            if info is not None:
                remove_superfluous(self._root, self._keep, self._mode if self._metric else None)
        except OSError as error:
            print(f"superfluous checkpoints under {self._root} cannot be removed: {error}", flush=True)
        return info, None

    def _write(self, snapshot: StateSnapshot, header: CheckpointHeader, epoch: int) -> CheckpointInfo | None:
        """Write one checkpoint; None where it was abandoned meanwhile."""
        name = folder_name(header.attempt, header.lineage, header.round, header.generation)
        target = self._root / name
        if (present := read_info(target)) is not None:
            return _amended(target, present, header)
        shutil.rmtree(target, ignore_errors=True)
        folder = self._root / UNFINISHED / f"{name}.{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            if not _write_files(folder, snapshot, is_wanted=lambda: self._epoch == epoch):
                return None
            info = _describe(folder, name, header)
            _write_manifest(folder, info, header.plan_sections)
            with self._changed:
                if self._epoch != epoch:
                    return None
                folder.rename(target)
            _fsync(self._root)
            return info
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_superfluous(root: Path, keep: int, mode: str | None) -> None:
    """Delete all checkpoints but the newest ``keep``, the final ones and, with a ``mode``, the best by metric.

    Also sweeps what saves left unfinished that were older than the newest complete checkpoint.
    """
    present = list_checkpoints(root)
    kept = {c.path for c in present[-keep:]} | {c.path for c in present if c.is_final}
    if mode is not None:
        measured = [(c.metric, c.path) for c in present if c.metric is not None]
        if measured:
            kept.add((max if mode == "max" else min)(measured, key=lambda pair: pair[0])[1])
    graves = root / UNFINISHED
    for info in present:
        if info.path not in kept:
            graves.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # another worker of the job may have removed it meanwhile
                (root / info.path).rename(graves / f"{info.path}.{os.getpid()}")
    if present and graves.is_dir():
        for folder in graves.iterdir():
            if folder.name.split(".")[0] <= present[-1].path:
                shutil.rmtree(folder, ignore_errors=True)


def load_checkpoint(folder: Path) -> LoadedState:
    """Read a whole checkpoint to the CPU.

    Raises CheckpointError where it is missing, incomplete or damaged.
    """
    model = load_weights(folder)
    _check_file(folder, STATE)
    try:
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        return LoadedState(
            model=model,
            optimizer=state["optimizer"],
            scaler=state["scaler"],
            round=state["round"],
            cursor=state["cursor"],
        )
    except Exception as error:  # unpickling damaged data can raise anything
        raise _damaged(folder / STATE, str(error)) from error


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read a checkpoint's parameters and buffers, by their names in the model, to the CPU.

    Raises CheckpointError where it is missing, incomplete or damaged.
    """
    _check_file(folder, WEIGHTS)
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError, ValueError) as error:
        raise _damaged(folder / WEIGHTS, str(error)) from error


def check_fits(model: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], origin: Path | str) -> None:
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


def _write_files(folder: Path, snapshot: StateSnapshot, is_wanted: Callable[[], bool]) -> bool:
    """Write weights and state durably; False, and no more is written, once the save is not wanted."""
    save_file(_separate(snapshot.model), folder / WEIGHTS)
    if not is_wanted():
        return False
    state = {
        "optimizer": plain_state(snapshot.optimizer),
        "scaler": plain_state(snapshot.scaler, "scaler"),
        "round": snapshot.round,
        "cursor": snapshot.cursor,
    }
    torch.save(state, folder / STATE)
    for name in (WEIGHTS, STATE):
        _fsync(folder / name)
    return is_wanted()


def _separate(model: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every name with memory of its own, as the file's form wants it, so that tied names all load."""
    seen: set[int] = set()
    separate = {}
    for name, value in model.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(
                f"the model's state {name!r} is a {type(value).__name__}; weights can hold tensors only, "
                "so make it a buffer or leave it out of state_dict"
            )
        tensor = value.detach().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return separate


def _describe(folder: Path, name: str, header: CheckpointHeader) -> CheckpointInfo:
    return CheckpointInfo(
        path=name,
        attempt=header.attempt,
        lineage=header.lineage,
        generation=header.generation,
        round=header.round,
        step=header.step,
        cursor=header.cursor,
        size_bytes=sum((folder / file).stat().st_size for file in (WEIGHTS, STATE)),
        metric=_finite(header.metric),
        is_final=header.is_final,
        created_at=time.time(),
        held_s=header.held_s,
    )


def _finite(metric: float | None) -> float | None:
    return metric if metric is not None and math.isfinite(metric) else None


def _amended(target: Path, present: CheckpointInfo, header: CheckpointHeader) -> CheckpointInfo:
    """The same state saved again, as the last periodic and the final save may be: only the manifest changes."""
    info = replace(
        present,
        is_final=present.is_final or header.is_final,
        metric=present.metric if _finite(header.metric) is None else header.metric,
    )
    if info != present:
        _write_manifest(target, info, header.plan_sections, sums=_sums(target))
    return info


def _write_manifest(
    folder: Path, info: CheckpointInfo, plan: Mapping[str, Any], sums: dict[str, str] | None = None
) -> None:
    sums = sums or {file: file_sha256(folder / file) for file in (WEIGHTS, STATE)}
    part = folder / f"{MANIFEST}.part"
    part.write_text(manifest_text(info, sums, dict(plan)))
    _fsync(part)
    part.rename(folder / MANIFEST)
    _fsync(folder)


def _sums(folder: Path) -> dict[str, str]:
    document = read_manifest(folder)
    sums = document.get("sha256") if document else None
    return {str(k): str(v) for k, v in sums.items()} if isinstance(sums, dict) else {}


def _check_file(folder: Path, file: str) -> None:
    if read_manifest(folder) is None:
        told = f"is not complete: it has no readable {MANIFEST}" if folder.is_dir() else "is missing"
        raise CheckpointError(f"the checkpoint {folder} {told}; take another one")
    wanted = _sums(folder).get(file)
    if not (folder / file).is_file():
        raise _damaged(folder / file, "the file is missing")
    seen = file_sha256(folder / file)
    if seen != wanted:
        raise _damaged(folder / file, f"its checksum is {seen}, the manifest says {wanted}")


def _damaged(path: Path, told: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint file {path} is damaged: {told}; take another checkpoint")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

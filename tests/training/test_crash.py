"""A save that is cut off anywhere leaves the checkpoints before it as they were."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.training.disk import CutCalls, FullDisk, PowerCut
from workers.checkpoints import DRAFTS, PIECES, list_checkpoints, read_manifest
from workers.control.restore import CheckpointSearch
from workers.errors import CheckpointError
from workers.local_storage import FileCalls, LocalStorage
from workers.retention import remove_superfluous
from workers.storage import Data, Storage
from workers.storage_urls import open_storage
from workers.training.checkpoint import CheckpointWriter
from workers.training.loading import load_checkpoint
from workers.training.state import CheckpointHeader, LoadedState, StateSnapshot
from workers.training.writing import Wish, write_checkpoint

KEEP = 2
WAIT_S = 60.0


def state(round: int, is_thawed: bool = False) -> StateSnapshot:
    """A tensor that is frozen until it is thawed, one that changes, and the moments of the latter."""
    return StateSnapshot(
        model={"frozen": torch.arange(50.0) + round * is_thawed, "head": torch.full((40,), float(round))},
        optimizer={"state": {0: {"m": torch.full((40,), -float(round)), "n": torch.tensor(round)}}},
        scaler=None,
        round=round,
        cursor=8 * round,
        frozen=frozenset({"frozen"}),
    )


def header(round: int) -> CheckpointHeader:
    return CheckpointHeader(
        attempt=1, lineage=1, round=round, generation=1, step=round, cursor=8 * round, metric=None, is_final=False
    )


def save(root: Path, round: int, calls: FileCalls | None = None, is_thawed: bool = False) -> None:
    save_to(LocalStorage(root, calls), round, is_thawed)


def save_to(storage: Storage, round: int, is_thawed: bool = False) -> None:
    """As the writer does it: save, built on the last checkpoint but one, then remove what is superfluous."""
    names = [info.path for info in list_checkpoints(storage)]
    write_checkpoint(storage, state(round, is_thawed), header(round), names[-2] if len(names) > 1 else None, Wish())
    remove_superfluous(storage, KEEP, None)


def restored(root: Path | str) -> LoadedState:
    found = CheckpointSearch(str(root), 0).look()
    assert found.latest is not None
    assert found.rows == ()  # no damaged one had to be passed over
    return load_checkpoint(f"{root}/{found.latest.path}")


def assert_is(loaded: LoadedState, round: int, is_thawed: bool = False) -> None:
    expected = state(round, is_thawed)
    assert (loaded.round, loaded.cursor) == (round, 8 * round)
    assert all(torch.equal(loaded.model[name], value) for name, value in expected.model.items())
    moments, wanted = loaded.optimizer["state"][0], expected.optimizer["state"][0]
    assert all(torch.equal(moments[name], value) for name, value in wanted.items())


def three_saved(root: Path) -> None:
    """The third makes the first superfluous, so that a fourth removes something."""
    for round in (1, 2, 3):
        save(root, round)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_power_cut_at_any_operation_leaves_the_newest_complete_one_and_no_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr("workers.local_storage._CHUNK_BYTES", 400)
    three_saved(tmp_path / "before")
    whole = CutCalls()
    save(shutil.copytree(tmp_path / "before", tmp_path / "whole"), 4, whole)
    assert whole.num_done > 25
    seen = set()
    for at in range(1, whole.num_done + 1):
        root = shutil.copytree(tmp_path / "before", tmp_path / f"cut{at}")
        with pytest.raises(PowerCut):
            save(root, 4, CutCalls(at, share))
        loaded = restored(root)
        seen.add(loaded.round)
        assert_is(loaded, loaded.round)
        save(root, 5)
        assert_is(restored(root), 5)
        assert_no_garbage(root)
    assert seen == {3, 4}


def assert_no_garbage(root: Path | str) -> None:
    storage = open_storage(str(root))
    manifests = [read_manifest(storage, info.path) for info in list_checkpoints(storage)]
    needed = {piece for manifest in manifests if manifest for piece in manifest.pieces}
    assert set(storage.keys()) - set(storage.keys("manifests")) == needed
    assert len(storage.keys("manifests")) == len(manifests) == KEEP


@pytest.mark.parametrize("at", ["first", "during the save", "during the sweep"])
def test_a_power_cut_at_the_first_save_ever_leaves_none_or_a_whole_one(at: str, tmp_path: Path) -> None:
    whole = CutCalls()
    save(tmp_path / "whole", 1, whole)
    cut = {"first": 1, "during the save": whole.num_done // 2, "during the sweep": whole.num_done}[at]
    with pytest.raises(PowerCut):
        save(tmp_path / "cut", 1, CutCalls(cut))
    save(tmp_path / "cut", 2)
    assert_is(restored(tmp_path / "cut"), 2)


def test_a_full_disk_fails_the_save_frees_what_it_took_and_keeps_the_others(tmp_path: Path) -> None:
    calls = FullDisk()
    storage = LocalStorage(tmp_path, calls)
    three_saved(tmp_path)
    before = storage.keys()
    writer = CheckpointWriter(storage, KEEP, None, "max")
    for room_bytes in (0, 100, 3000):
        calls.room_bytes = room_bytes
        writer.save(state(4), header(4), writer.staging())
        with pytest.raises(CheckpointError, match=r"step 4 cannot be written.*No space left.*free space"):
            writer.flush(WAIT_S)
        assert storage.keys() == before
        assert_is(restored(tmp_path), 3)
    assert [failed.step for failed in writer.failed()] == [4]
    calls.room_bytes = None
    writer.save(state(5), header(5), writer.staging())
    writer.flush(WAIT_S)
    assert_is(restored(tmp_path), 5)


class Interrupted(LocalStorage):
    """Lets somebody else act right before an object of a kind is written."""

    def __init__(self, root: Path, before: str, act: object, calls: FileCalls | None = None) -> None:
        super().__init__(root, calls)
        self._before, self._act = before, act

    def write(self, key: str, parts: Iterable[Data]) -> int:
        if key.startswith(self._before) and callable(self._act):
            act, self._act = self._act, None
            act()
        return super().write(key, parts)


@pytest.mark.parametrize("before", [DRAFTS, PIECES, "manifests"])
def test_another_save_and_its_sweep_in_the_middle_leave_both_whole_or_give_one_up(before: str, tmp_path: Path) -> None:
    save(tmp_path, 1)

    def others() -> None:
        for round in (3, 4, 5):  # the base of ours becomes superfluous, and ours older than the newest
            save(tmp_path, round, is_thawed=True)

    storage = Interrupted(tmp_path, before, others)
    base = list_checkpoints(storage)[-1].path
    if before == DRAFTS:
        write_checkpoint(storage, state(2), header(2), base, Wish())
    else:
        with pytest.raises(CheckpointError, match="a newer checkpoint was completed meanwhile"):
            write_checkpoint(storage, state(2), header(2), base, Wish())
    for info in list_checkpoints(storage):
        assert_is(load_checkpoint(f"{tmp_path}/{info.path}"), info.round, is_thawed=info.round > 2)
    remove_superfluous(storage, KEEP, None)
    assert [info.round for info in list_checkpoints(storage)] == [4, 5]
    assert_no_garbage(tmp_path)


@pytest.mark.parametrize("before", [DRAFTS, PIECES, "manifests"])
def test_two_workers_that_save_the_same_commit_leave_one_whole_checkpoint(before: str, tmp_path: Path) -> None:
    save(tmp_path, 1)
    storage = Interrupted(tmp_path, before, lambda: save(tmp_path, 2))
    write_checkpoint(storage, state(2), header(2), list_checkpoints(storage)[-1].path, Wish())
    assert_is(restored(tmp_path), 2)
    save(tmp_path, 3)
    assert_no_garbage(tmp_path)


def test_a_save_that_fails_leaves_the_same_commit_of_another_worker_alone(tmp_path: Path) -> None:
    calls = FullDisk()

    def other() -> None:
        save(tmp_path, 2)
        calls.room_bytes = 0

    storage = Interrupted(tmp_path, "manifests", other, calls)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(storage, state(2), header(2), None, Wish())
    assert_is(restored(tmp_path), 2)


def test_a_sweep_spares_what_a_newer_save_has_announced(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def others() -> None:
        save(tmp_path, 2, is_thawed=True)
        save(tmp_path, 3, is_thawed=True)  # removes the first, on which ours is built
        assert [info.round for info in list_checkpoints(LocalStorage(tmp_path))] == [2, 3]

    storage = Interrupted(tmp_path, PIECES, others)
    write_checkpoint(storage, state(9), header(9), list_checkpoints(storage)[-1].path, Wish())
    assert_is(restored(tmp_path), 9)

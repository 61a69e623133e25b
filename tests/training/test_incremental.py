"""What did not change is written for two checkpoints, not again, and lives as long as a kept one needs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.bad_sectors import BadSectors
from workers.checkpoints import PIECES, damage, list_checkpoints, manifest_key, read_manifest
from workers.control.restore import CheckpointSearch
from workers.local_storage import LocalStorage
from workers.status import CheckpointInfo
from workers.training.checkpoint import CheckpointWriter
from workers.training.loading import load_checkpoint
from workers.training.staging import Staging, forms
from workers.training.state import CheckpointHeader, StateSnapshot

WAIT_S = 60.0
LARGE, SMALL = 100_000, 1_000  # numbers of four bytes


def header(round: int, *, is_final: bool = False) -> CheckpointHeader:
    return CheckpointHeader(
        attempt=1, lineage=1, round=round, generation=1, step=round, cursor=round, metric=None, is_final=is_final
    )


def snapshot(round: int, frozen: frozenset[str] = frozenset(), **sizes: int) -> StateSnapshot:
    """Tensors of these sizes; those with a small name change with the round, as do their moments."""
    model, moments = {}, {}
    for i, (name, size) in enumerate(sizes.items()):
        changes = round if name.islower() else 0
        torch.manual_seed(1000 * i + changes)
        model[name] = torch.randn(size)
        if name not in frozen:
            moments[i] = {"m": torch.randn(size), "step": torch.tensor(float(changes))}
    return StateSnapshot(
        model=model, optimizer={"state": moments}, scaler=None, round=round, cursor=round, frozen=frozen
    )


def save(writer: CheckpointWriter, state: StateSnapshot, *, is_final: bool = False) -> CheckpointInfo:
    writer.save(state, header(state.round, is_final=is_final), writer.staging())
    writer.flush(WAIT_S)
    [info] = writer.finished()
    return info


def writer_in(root: Path, keep: int = 2) -> CheckpointWriter:
    return CheckpointWriter(LocalStorage(root), keep, None, "max")


def stored_bytes(root: Path) -> int:
    return sum((root / key).stat().st_size for key in LocalStorage(root).keys(PIECES))


def assert_all_restore(root: Path, expected: dict[int, StateSnapshot]) -> None:
    for info in list_checkpoints(LocalStorage(root)):
        loaded, state = load_checkpoint(f"{root}/{info.path}"), expected[info.round]
        assert all(torch.equal(loaded.model[name], value) for name, value in state.model.items())
        for i, moments in state.optimizer["state"].items():
            assert all(torch.equal(loaded.optimizer["state"][i][name], value) for name, value in moments.items())


def flip(root: Path, name: str) -> None:
    """Change one byte of what stands still in a checkpoint."""
    manifest = read_manifest(LocalStorage(root), name)
    assert manifest is not None
    [still] = [root / piece for piece in manifest.pieces if piece.endswith("still")]
    data = bytearray(still.read_bytes())
    data[len(data) // 2] ^= 1
    still.write_bytes(data)


def test_a_frozen_layer_is_written_twice_and_outlives_the_checkpoints_that_wrote_it(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    states = {n: snapshot(n, frozenset({"EMBED"}), EMBED=LARGE, head=SMALL) for n in range(1, 6)}
    written = [save(writer, state).written_bytes for state in states.values()]
    assert all(one > 4 * LARGE for one in written[:2])
    assert all(one < 4 * LARGE / 10 for one in written[2:])
    assert [info.round for info in list_checkpoints(LocalStorage(tmp_path))] == [4, 5]
    assert_all_restore(tmp_path, states)
    assert stored_bytes(tmp_path) < 2.2 * 4 * LARGE


def test_moments_that_stand_still_are_not_written_again_either(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    states = {n: snapshot(n, STILL=LARGE, head=SMALL) for n in range(1, 5)}
    written = [save(writer, state).written_bytes for state in states.values()]
    assert all(one < 4 * LARGE / 10 for one in written[2:])
    assert_all_restore(tmp_path, states)


def test_a_small_still_part_is_set_apart_once_and_does_not_hold_large_pieces_for_ever(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, keep=1)
    states = {n: snapshot(n, STILL=LARGE, large=4 * LARGE) for n in range(1, 6)}
    infos = [save(writer, state) for state in states.values()]
    changing = 2 * 4 * 4 * LARGE
    assert [round((info.written_bytes - changing) / (8 * LARGE), 1) for info in infos] == [1, 1, 0, 0, 0]
    assert stored_bytes(tmp_path) < 1.1 * infos[-1].size_bytes
    assert_all_restore(tmp_path, states)


def test_a_restored_training_builds_on_the_checkpoint_that_it_was_restored_from(tmp_path: Path) -> None:
    states = {n: snapshot(n, frozenset({"EMBED"}), EMBED=LARGE, head=SMALL) for n in range(1, 6)}
    first = save(writer_in(tmp_path, keep=4), states[1])
    restored, stranger = writer_in(tmp_path, keep=4), writer_in(tmp_path, keep=4)
    restored.build_on(first.path)
    # Its next one is the second copy.
    assert save(restored, states[2]).written_bytes > 4 * LARGE
    assert save(restored, states[3]).written_bytes < 4 * LARGE / 10
    # One that has read nothing here trusts nothing here.
    assert all(save(stranger, states[n]).written_bytes > 4 * LARGE for n in (4, 5))
    assert_all_restore(tmp_path, states)


def test_whatever_one_file_spoils_the_newest_or_the_one_before_is_whole_and_the_next_saves_heal(tmp_path: Path) -> None:
    writer, storage = writer_in(tmp_path), LocalStorage(tmp_path)
    states = {n: snapshot(n, frozenset({"EMBED"}), EMBED=LARGE, head=SMALL) for n in range(1, 8)}
    infos = [save(writer, states[n]) for n in range(1, 5)]
    flip(tmp_path, infos[-1].path)
    assert [damage(storage, info.path) is None for info in infos[-2:]] == [True, False]
    # The next takes what stands still from the one before; the one after it finds the damage.
    assert damage(storage, save(writer, states[5]).path) is None
    assert damage(storage, save(writer, states[6]).path) is None
    assert save(writer, states[7]).written_bytes < 4 * LARGE / 10
    flip(tmp_path, list_checkpoints(storage)[-1].path)
    found = CheckpointSearch(str(tmp_path), 0).look()
    assert found.latest is not None
    assert found.latest.round == 6
    assert len(found.rows) == 1
    assert_all_restore(tmp_path, states)


def test_where_only_one_is_kept_a_shared_piece_that_is_damaged_gone_or_cut_is_written_again(tmp_path: Path) -> None:
    writer, storage = writer_in(tmp_path, keep=1), LocalStorage(tmp_path)
    states = {n: snapshot(n, frozenset({"EMBED"}), EMBED=LARGE, head=SMALL) for n in range(1, 5)}
    flip(tmp_path, save(writer, states[1]).path)
    assert damage(storage, save(writer, states[2]).path) is None
    [still] = [tmp_path / key for key in storage.keys(PIECES) if key.endswith("still")]
    still.write_bytes(still.read_bytes()[:-1])
    assert damage(storage, save(writer, states[3]).path) is None
    [still] = [tmp_path / key for key in storage.keys(PIECES) if key.endswith("still")]
    still.unlink()
    assert damage(storage, save(writer, states[4]).path) is None


def test_a_final_one_keeps_its_pieces_when_all_others_are_gone(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, keep=1)
    states = {n: snapshot(n, STILL=SMALL, head=SMALL) for n in range(1, 5)}
    for n, state in states.items():
        save(writer, state, is_final=n == 1)
    assert [info.round for info in list_checkpoints(LocalStorage(tmp_path))] == [1, 4]
    assert_all_restore(tmp_path, states)


def test_equal_numbers_lie_in_one_place_and_come_back_apart(tmp_path: Path) -> None:
    same = torch.full((LARGE,), 7.0)
    state = StateSnapshot(model={"a": same, "b": same.clone()}, optimizer={}, scaler=None, round=1, cursor=1)
    info = save(writer_in(tmp_path), state)
    assert info.written_bytes < 1.1 * 4 * LARGE
    loaded = load_checkpoint(f"{tmp_path}/{info.path}").model
    loaded["a"].zero_()
    assert torch.equal(loaded["b"], same)


def test_staging_takes_its_memory_again_and_follows_changes_of_form() -> None:
    staging = Staging()
    model = {"w": torch.arange(6.0).reshape(2, 3).t(), "n": torch.tensor(3), "name": "x"}
    first = staging.copy({"model": {**model, "tied": model["w"]}, "groups": [{"lr": 0.1}]})
    assert torch.equal(first["model"]["w"], model["w"])
    assert first["model"]["tied"] is first["model"]["w"]
    assert (first["model"]["name"], first["groups"]) == ("x", [{"lr": 0.1}])
    model["w"] += 1
    assert not torch.equal(first["model"]["w"], model["w"])
    other_memory = Staging()
    other_memory.prepare(forms({"model": model}))
    assert torch.equal(other_memory.copy({"model": model})["model"]["w"], model["w"])
    second = staging.copy({"model": model})
    assert second["model"]["w"].data_ptr() == first["model"]["w"].data_ptr()
    assert torch.equal(second["model"]["w"], model["w"])
    other = staging.copy({"model": {"w": torch.ones(2, dtype=torch.float64)}})
    assert torch.equal(other["model"]["w"], torch.ones(2, dtype=torch.float64))


def test_a_manifest_that_cannot_be_read_does_not_fail_the_saves_that_would_take_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_in(tmp_path)
    states = {n: snapshot(n, frozenset({"EMBED"}), EMBED=LARGE, head=SMALL) for n in range(1, 7)}
    infos = [save(writer, states[n]) for n in range(1, 4)]
    BadSectors(monkeypatch).is_bad = lambda path: path == tmp_path / manifest_key(infos[-2].path)
    later = [save(writer, states[n]) for n in range(4, 7)]
    assert [info.written_bytes > 4 * LARGE for info in later] == [True, False, False]
    assert all(damage(LocalStorage(tmp_path), info.path) is None for info in later)

"""Damaged checkpoints are passed over for the one before, and the timeline tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.control.test_controller import Scene, play
from tests.stored_checkpoint import store_checkpoint
from workers.checkpoints import PIECES, checkpoint_name, checkpoint_names, manifest_key
from workers.control import controller as controller_module
from workers.control.restore import CheckpointSearch
from workers.local_storage import LocalStorage
from workers.plan import CheckpointSource, FreshSource
from workers.status import CheckpointInfo, JobSnapshot


def info(step: int, attempt: int = 1) -> CheckpointInfo:
    return CheckpointInfo(
        path=checkpoint_name(attempt, 1, step, 1),
        attempt=attempt,
        lineage=1,
        generation=1,
        round=step,
        step=step,
        cursor=8 * step,
        size_bytes=1,
        metric=None,
        is_final=False,
        created_at=0.0,
    )


def flip(root: Path, path: str) -> None:
    [piece] = [key for key in LocalStorage(root).keys(PIECES) if path in key]
    data = bytearray((root / piece).read_bytes())
    data[-1] ^= 1
    (root / piece).write_bytes(data)


def cut_manifest(root: Path, path: str) -> None:
    key = manifest_key(path)
    (root / key).write_bytes((root / key).read_bytes()[:-20])


def lose_piece(root: Path, path: str) -> None:
    [piece] = [key for key in LocalStorage(root).keys(PIECES) if path in key]
    (root / piece).unlink()


HARMS = [
    (flip, "the checkpoint of step 6 is passed over: ", "the checksum from byte 1 on is"),
    (lose_piece, "the checkpoint of step 6 is passed over: ", "the piece is missing"),
    (cut_manifest, f"the checkpoint {info(6).path} is passed over: ", "the manifest of the checkpoint"),
]


@pytest.mark.parametrize(("harm", "begin", "why"), HARMS)
def test_a_job_goes_on_from_the_checkpoint_before_a_damaged_one_and_tells(
    harm: Callable[[Path, str], None], begin: str, why: str, tmp_path: Path
) -> None:
    for step in (4, 5, 6):
        store_checkpoint(LocalStorage(tmp_path), info(step), {"w": b"weights"})
    harm(tmp_path, info(6).path)

    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        first = await scene.until(lambda s: s.plan is not None)
        assert first.plan is not None
        assert first.plan.source == CheckpointSource(info(5).path, 5, info(5).cursor)
        await scene.until(lambda s: f"passed/{info(6).path}" in scene.store.timeline)
        row = scene.store.timeline[f"passed/{info(6).path}"]
        assert row.kind == "restore"
        assert row.reason.startswith(begin)
        assert why in row.reason

    play(act)
    # It does not count as one of those to keep, and what made the row stays for the next controller.
    assert checkpoint_names(LocalStorage(tmp_path)) == [info(4).path, info(5).path]
    assert [row.key for row in CheckpointSearch(str(tmp_path), 0).look().rows] == [f"passed/{info(6).path}"]


def test_where_all_are_damaged_it_begins_afresh_and_tells_of_each(tmp_path: Path) -> None:
    for step in (5, 6):
        store_checkpoint(LocalStorage(tmp_path), info(step))
        lose_piece(tmp_path, info(step).path)

    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        first = await scene.until(lambda s: s.plan is not None)
        assert first.plan is not None
        assert isinstance(first.plan.source, FreshSource)
        await scene.until(lambda s: {f"passed/{info(n).path}" for n in (5, 6)} <= scene.store.timeline.keys())

    play(act)


def test_checkpoints_of_attempts_that_are_not_gone_on_from_are_not_looked_at(tmp_path: Path) -> None:
    store_checkpoint(LocalStorage(tmp_path), info(5, attempt=1))
    lose_piece(tmp_path, info(5).path)
    found = CheckpointSearch(str(tmp_path), restart_after=1).look()
    assert (found.latest, found.rows) == (None, ())
    assert checkpoint_names(LocalStorage(tmp_path)) == [info(5).path]


def test_storage_that_fails_for_a_moment_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "STORAGE_RETRY_S", 0.01)
    root = tmp_path / "root"
    store_checkpoint(LocalStorage(tmp_path / "real"), info(5))
    root.mkdir()
    (root / "manifests").write_text("not a folder, for now")

    async def act() -> None:
        scene = Scene(root)
        await scene.prepare()
        for _ in range(5):
            assert (await scene.tick()).plan is None
        (root / "manifests").unlink()
        root.rmdir()
        (tmp_path / "real").rename(root)
        first: JobSnapshot = await scene.until(lambda s: s.plan is not None)
        assert first.plan is not None
        assert first.plan.source == CheckpointSource(info(5).path, 5, info(5).cursor)

    play(act)

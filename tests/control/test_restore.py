"""Damaged checkpoints are passed over for the one before, and the timeline tells."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.control.desk import Desk, checkpoint
from tests.control.fake_fleet import BATCH, FakeFleet
from tests.control.test_controller import Scene, play
from tests.stored_checkpoint import Hasty, store_checkpoint
from workers.checkpoints import DAMAGED, PIECES, checkpoint_name, checkpoint_names, damage, manifest_key
from workers.control.regroup import MAX_LAUNCHES
from workers.control.restore import CheckpointSearch
from workers.errors import Failure, Reason
from workers.local_storage import LocalStorage
from workers.plan import CheckpointSource, FreshSource, Source
from workers.run_settings import RunSettings
from workers.status import CheckpointInfo, Outcome, Phase, StopCause

AWAY = Failure(reason=Reason.CONTROLLER_ERROR, type="UnreadableError", message="the checkpoint cannot be read")


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


def test_a_checkpoint_whose_manifest_or_piece_ends_at_any_byte_is_damaged_and_passed_over(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, Hasty())
    for step in (5, 6):
        store_checkpoint(storage, info(step), {"w": b"weights"})
    name = info(6).path
    [piece] = [key for key in storage.keys(PIECES) if name in key]
    for file in (tmp_path / piece, tmp_path / manifest_key(name)):
        whole = file.read_bytes()
        assert damage(storage, name) is None
        for size_bytes in reversed(range(len(whole))):
            os.truncate(file, size_bytes)
            assert damage(storage, name), f"{file.name} ends at byte {size_bytes}"
        assert CheckpointSearch(str(tmp_path), 0).look().latest == info(5)
        store_checkpoint(storage, info(6), {"w": b"weights"})


def test_what_was_damaged_since_it_was_found_whole_is_looked_at_again_when_a_worker_cannot_read_it(
    tmp_path: Path,
) -> None:
    for step in (5, 6):
        store_checkpoint(LocalStorage(tmp_path), info(step), {"w": b"weights"})

    def read(source: Source) -> Failure | None:
        """As a worker would; the newest is damaged after the plan that names it was made."""
        assert isinstance(source, CheckpointSource)
        if source.path == info(6).path and not paths:
            flip(tmp_path, source.path)
        paths.append(source.path)
        why = damage(LocalStorage(tmp_path), source.path)
        return None if why is None else Failure(reason=Reason.CONTROLLER_ERROR, type="UnreadableError", message=why)

    paths: list[str] = []

    async def act() -> None:
        scene = Scene(tmp_path)
        scene.fleet = FakeFleet(1, read=read)
        await scene.prepare()
        last = await scene.until(lambda s: s.outcome is not None)
        assert last.outcome is Outcome.SUCCEEDED
        assert set(paths) == {info(6).path, info(5).path}
        assert last.plan is not None
        assert last.plan.failures.num == 0
        rows = [row for row in scene.store.timeline.values() if row.kind == "restore"]
        assert any(row.key == f"passed/{info(6).path}" and "checksum" in row.reason for row in rows)
        assert any("from the checkpoint of step 5, as the state to begin" in row.reason for row in rows)

    play(act)


@pytest.mark.parametrize(
    ("adapt", "order", "expected", "told"),
    [
        ("goodput", None, 64, ", with the 64 samples a step that it had come to"),
        ("goodput", 1, 64, ", with the 64 samples a step that it had come to"),
        ("goodput", 2, 16, ""),
        ("fixed", None, BATCH, ""),
    ],
)
def test_a_job_goes_on_with_the_batch_that_it_had_adapted_to_unless_another_was_asked_for_since(
    adapt: str, order: int | None, expected: int, told: str
) -> None:
    desk = Desk(batch={"global_size": BATCH, "adapt": adapt})
    desk.latest = replace(checkpoint(5), settings=1, global_batch=64)
    if order is not None:
        wish = RunSettings(n=order, lr=0.1, global_batch=16, actor="user", reason="")
        desk.direction = replace(desk.direction, settings=wish)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.say("1.2", Phase.READY)
    desk.turn()
    assert desk.plan.global_batch == expected
    assert sum(member.weight for member in desk.plan.members) > 0
    assert desk.plan.cause.reason == f"training from the checkpoint of step 5{told}"


def test_a_whole_checkpoint_that_no_worker_can_read_is_tried_again_with_pauses_and_then_given_up() -> None:
    desk = Desk(max_failures=0)
    desk.latest = checkpoint(5)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.say("1.2", Phase.READY)
    desk.turn()
    waited_s = []
    for _ in range(MAX_LAUNCHES):
        plan, since_s = desk.plan, desk.now
        for i in plan.worker_ids:
            desk.say(i, Phase.STOPPED, plan=plan)
            desk.stop(i, StopCause.CHECKPOINT if i == "1.1" else StopCause.PEER, AWAY if i == "1.1" else None)
        while desk.plan is plan:
            desk.turn(after_s=0.2)
        waited_s.append(desk.now - since_s)
        assert desk.plan.source == CheckpointSource("p5", 5, 40)
    assert all(later > 1.5 * sooner for sooner, later in pairwise(waited_s))
    for i in desk.plan.worker_ids:
        desk.say(i, Phase.STOPPED, plan=desk.plan)
        desk.stop(i, StopCause.CHECKPOINT, AWAY)
    desk.turn()
    assert desk.state.failures.num == 0
    assert desk.state.ending is not None
    assert desk.state.reason is Reason.CONTROLLER_ERROR
    assert desk.state.detail.startswith(AWAY.message)


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


def test_a_note_of_a_damaged_one_that_was_being_written_at_a_kill_is_none(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    store_checkpoint(storage, info(5))
    lose_piece(tmp_path, info(5).path)
    (tmp_path / DAMAGED).mkdir()
    for beginning in ("", "{"):
        (tmp_path / DAMAGED / f"{info(5).path}.json.{len(beginning)}a.part").write_text(beginning)
    for _ in range(2):
        (row,) = CheckpointSearch(str(tmp_path), restart_after=0).look().rows
        assert row.key == f"passed/{info(5).path}"


def test_checkpoints_of_attempts_that_are_not_gone_on_from_are_not_looked_at(tmp_path: Path) -> None:
    store_checkpoint(LocalStorage(tmp_path), info(5, attempt=1))
    lose_piece(tmp_path, info(5).path)
    found = CheckpointSearch(str(tmp_path), restart_after=1).look()
    assert (found.latest, found.rows) == (None, ())
    assert checkpoint_names(LocalStorage(tmp_path)) == [info(5).path]

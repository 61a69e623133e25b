"""A checkpoint of which a file stays unreadable is passed over, but never because its storage is away as a whole."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.bad_sectors import BadSectors, Fault, denied, half_gone
from tests.control.test_controller import Scene, play
from tests.control.test_restore import cut_manifest, info
from tests.stored_checkpoint import store_checkpoint
from workers.checkpoints import DAMAGED, MANIFESTS, PIECES, checkpoint_names
from workers.control import lookout
from workers.control.restore import CheckpointSearch
from workers.local_storage import FileCalls, LocalStorage
from workers.plan import CheckpointSource
from workers.status import JobSnapshot, Outcome

NEWEST, BEFORE = info(6).path, info(5).path


@pytest.fixture
def stored(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path)
    for step in (4, 5, 6):
        store_checkpoint(storage, info(step), {"w": b"weights"})
    return storage


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "STORAGE_RETRY_S", 0.01)
    monkeypatch.setattr(lookout, "UNREAD_S", 0.05)
    monkeypatch.setattr(lookout, "STORAGE_S", 0.2)


def of(folder: str, name: str) -> Callable[[Path], bool]:
    return lambda path: path.parent.name == folder and path.name.startswith(name)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("fault", "why"), [(half_gone, "Input/output error"), (denied, "Permission denied")])
@pytest.mark.parametrize(("folder", "which"), [(PIECES, "of step 6"), (MANIFESTS, NEWEST)])
def test_a_job_goes_on_from_the_one_before_and_tells_which_file_cannot_be_read(
    stored: LocalStorage, folder: str, which: str, fault: Fault, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sectors = BadSectors(monkeypatch, fault)
    sectors.is_bad = of(folder, NEWEST)
    [key] = [key for key in stored.keys(folder) if NEWEST in key]

    async def act() -> None:
        scene = Scene(Path(stored.url))
        await scene.prepare()
        first = await scene.until(lambda s: s.plan is not None)
        assert first.plan is not None
        assert first.plan.source == CheckpointSource(BEFORE, 5, info(5).cursor)
        await scene.until(lambda s: f"passed/{NEWEST}" in scene.store.timeline)
        row = scene.store.timeline[f"passed/{NEWEST}"]
        assert row.kind == "restore"
        assert row.reason.startswith(f"the checkpoint {which} is passed over: {stored.url}/{key} cannot be read: ")
        assert why in row.reason

    play(act)
    assert sectors.num_opened > 2  # it was tried again before
    assert checkpoint_names(stored) == [info(4).path, BEFORE]


def test_where_one_try_takes_longer_than_storage_is_waited_for_the_second_decides(
    stored: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "STORAGE_RETRY_S", 0.01)
    monkeypatch.setattr(lookout, "STORAGE_S", 0.02)

    def slowly(file: BinaryIO) -> BinaryIO:
        time.sleep(0.05)
        return denied(file)

    BadSectors(monkeypatch, slowly).is_bad = of(PIECES, NEWEST)

    async def act() -> None:
        seeker = lookout.Lookout(CheckpointSearch(stored.url, 0))
        assert [row.key for row in await seeker.look(lambda: True)] == [f"passed/{NEWEST}"]
        assert seeker.latest == info(5)

    play(act)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("is_bad", [of(PIECES, ""), of(MANIFESTS, ""), lambda path: True])
def test_storage_of_which_nothing_can_be_read_is_waited_for_however_well_it_lists(
    stored: LocalStorage, is_bad: Callable[[Path], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    BadSectors(monkeypatch).is_bad = is_bad
    before = stored.keys()

    async def act() -> None:
        scene = Scene(Path(stored.url))
        await scene.prepare()
        last: JobSnapshot = await scene.until(lambda s: s.outcome is not None)
        assert (last.outcome, last.failure) == (Outcome.REQUEUED, None)
        assert "cannot be read" in last.detail
        assert not [row for row in scene.store.timeline.values() if row.key.startswith("passed/")]

    play(act)
    assert stored.keys() == before


def test_what_cannot_be_read_for_a_moment_is_read_again_and_gone_on_from(
    stored: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "STORAGE_RETRY_S", 0.01)
    sectors = BadSectors(monkeypatch)
    sectors.is_bad = lambda path: of(PIECES, NEWEST)(path) and sectors.num_opened < 3

    async def act() -> None:
        scene = Scene(Path(stored.url))
        await scene.prepare()
        first = await scene.until(lambda s: s.plan is not None)
        assert first.plan is not None
        assert first.plan.source == CheckpointSource(NEWEST, 6, info(6).cursor)

    play(act)
    assert sectors.num_opened == 3
    assert stored.keys(DAMAGED) == []


def test_while_it_is_tried_the_job_tells_which_file_cannot_be_read(
    stored: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "LONG_S", 0.0)
    sectors = BadSectors(monkeypatch)
    sectors.is_bad = of(PIECES, NEWEST)

    async def act() -> None:
        scene = Scene(Path(stored.url))
        await scene.prepare()
        told = await scene.until(lambda s: "the last try: " in s.detail)
        assert f"{stored.url}/{PIECES}/{NEWEST}" in told.detail
        sectors.is_bad = lambda path: False
        await scene.until(lambda s: s.has_trained and not s.detail)

    play(act)


def test_what_can_be_read_again_once_the_one_before_was_is_gone_on_from(
    stored: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage was away, and came back in the moment between."""
    sectors = BadSectors(monkeypatch)
    sectors.is_bad = lambda path: of(PIECES, NEWEST)(path) and sectors.num_opened < 1
    found = CheckpointSearch(stored.url, 0).look(passes_unread=True)
    assert (found.latest, found.rows) == (info(6), ())
    assert sectors.num_opened == 1


@pytest.mark.parametrize("restart_after", [0, 1])
def test_the_only_one_is_waited_for_and_it_is_told_how_to_go_on_without_it(
    tmp_path: Path, restart_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    for attempt in range(restart_after + 1):  # one of an attempt that is not gone on from is none before
        store_checkpoint(storage, info(6, attempt=attempt + 1))
    newest, before = checkpoint_names(storage)[-1], storage.keys()
    BadSectors(monkeypatch).is_bad = of(PIECES, newest)
    with pytest.raises(OSError, match=rf"{newest}.* cannot be read: .*no checkpoint before it is whole.*remove"):
        CheckpointSearch(str(tmp_path), restart_after).look(passes_unread=True)
    assert storage.keys() == before


def test_where_those_before_are_damaged_nothing_is_set_aside(
    stored: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (4, 5):
        cut_manifest(Path(stored.url), info(step).path)
    before = stored.keys()
    BadSectors(monkeypatch).is_bad = of(PIECES, NEWEST)
    with pytest.raises(OSError, match="cannot be read"):
        CheckpointSearch(stored.url, 0).look(passes_unread=True)
    assert stored.keys() == before


def test_of_several_that_cannot_be_read_each_is_told_of(stored: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    BadSectors(monkeypatch).is_bad = lambda path: of(PIECES, NEWEST)(path) or of(MANIFESTS, BEFORE)(path)
    found = CheckpointSearch(stored.url, 0).look(passes_unread=True)
    assert found.latest == info(4)
    assert [row.after for row in found.rows] == [{"passed_over": BEFORE}, {"passed_over": NEWEST}]
    assert checkpoint_names(stored) == [info(4).path]


def test_a_disk_that_is_gone_and_answers_from_memory_loses_no_checkpoint(
    stored: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before can be read still; nothing reaches the disk."""

    def fail(calls: FileCalls, descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = stored.keys()
    BadSectors(monkeypatch).is_bad = of(PIECES, NEWEST)
    monkeypatch.setattr(FileCalls, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        CheckpointSearch(stored.url, 0).look(passes_unread=True)
    assert stored.keys() == before


def test_that_the_one_before_was_whole_long_ago_does_not_count(
    stored: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.delete(f"{MANIFESTS}/{NEWEST}.json")
    search = CheckpointSearch(stored.url, 0)
    assert search.look().latest == info(5)
    store_checkpoint(stored, info(6))
    stored.delete(f"{MANIFESTS}/{info(4).path}.json")
    before = stored.keys()
    BadSectors(monkeypatch).is_bad = of(PIECES, "")
    with pytest.raises(OSError, match="cannot be read"):
        search.look(passes_unread=True)
    assert stored.keys() == before

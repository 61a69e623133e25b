"""Storage that fails or hangs is not taken for empty, and holds up neither the job nor others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.control.fake_fleet import BATCH, FakeFleet, FakeWorker
from tests.control.test_controller import Scene, play
from tests.control.test_restore import info
from tests.stored_checkpoint import store_checkpoint
from workers.control import lookout
from workers.control.restore import CheckpointSearch, Found
from workers.errors import Failure, Reason
from workers.local_storage import LocalStorage
from workers.plan import CheckpointSource, Plan
from workers.status import Acknowledged, Direction, JobSnapshot, Outcome, Phase, RunGoal

OUT_OF_MEMORY = Failure(reason=Reason.OUT_OF_MEMORY, type="MemoryError", message="in mid-commit", is_in_commit=True)


def test_storage_that_fails_for_a_moment_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "STORAGE_RETRY_S", 0.01)
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


def test_storage_that_stays_away_sends_the_job_back_to_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "STORAGE_RETRY_S", 0.01)
    monkeypatch.setattr(lookout, "STORAGE_S", 0.1)
    (tmp_path / "manifests").write_text("not a folder")

    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        last: JobSnapshot = await scene.until(lambda s: s.outcome is not None)
        assert (last.outcome, last.failure) == (Outcome.REQUEUED, None)
        assert last.detail.startswith("checkpoints cannot be looked for: ")
        assert scene.fleet.worker_ids == ()
        assert "end/requeued" in {key.lower() for key in scene.store.timeline}

    play(act)


@pytest.mark.parametrize(("goal", "outcome"), [(RunGoal.CANCEL, Outcome.CANCELLED), (RunGoal.PAUSE, Outcome.PAUSED)])
def test_what_a_job_is_told_while_its_storage_hangs_is_carried_out(
    goal: RunGoal, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "ENOUGH_S", 0.1)
    hangs, looks = threading.Event(), CheckpointSearch.look

    def look(search: CheckpointSearch, **how: bool) -> Found:
        begun.set()
        hangs.wait(30)
        return looks(search, **how)

    begun = threading.Event()
    monkeypatch.setattr(CheckpointSearch, "look", look)

    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        await scene.until(lambda s: begun.is_set())
        scene.direction = replace(scene.direction, goal=goal, actor="user")
        last: JobSnapshot = await scene.until(lambda s: s.outcome is not None)
        assert (last.outcome, last.failure) == (outcome, None)
        hangs.set()

    play(act)


def test_a_job_whose_storage_hangs_tells_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "LONG_S", 0.05)
    hangs, looks = threading.Event(), CheckpointSearch.look

    def look(search: CheckpointSearch, **how: bool) -> Found:
        hangs.wait(30)
        return looks(search, **how)

    monkeypatch.setattr(CheckpointSearch, "look", look)

    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        last: JobSnapshot = await scene.until(lambda s: bool(s.detail))
        assert last.detail.startswith(f"the newest checkpoint is looked for and read in {tmp_path}")
        hangs.set()
        await scene.until(lambda s: s.has_trained and not s.detail)

    play(act)


def test_searches_that_hang_take_no_threads_from_others_and_do_not_hold_up_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, begun, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def look(search: CheckpointSearch, **how: bool) -> Found:
        threads.append(threading.current_thread())
        begun.set()
        hangs.wait(30)
        return Found()

    monkeypatch.setattr(CheckpointSearch, "look", look)

    async def act() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        seeker = lookout.Lookout(CheckpointSearch(str(tmp_path), 0))
        monkeypatch.setattr(lookout, "ENOUGH_S", 0.0)
        assert await seeker.look(lambda: False) == ()
        assert not seeker.has_looked
        assert await asyncio.to_thread(begun.wait, 5)  # in the only thread that the loop has
        assert [thread.daemon for thread in threads] == [True]
        hangs.set()
        assert await seeker.look(lambda: True) == ()
        assert seeker.has_looked

    play(act)


class Relay(FakeFleet):
    """The first worker dies in the moment in which the second tells what ``is_time`` waits for.

    With a ``failure`` it fails by that, and its process stays.
    """

    def __init__(self, is_time: Callable[[FakeWorker], bool], total: int, failure: Failure | None = None) -> None:
        super().__init__(1, total=total)
        self.is_time, self.failure, self.lingers = is_time, failure, failure is not None
        self.late: FakeWorker | None = None

    def poll(self, worker_id: str, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> None:
        super().poll(worker_id, plan, acked, wants_records)
        worker = self.workers[worker_id]
        if worker_id == "1.2" and self.late is None and self.is_time(worker):
            self.late = worker
            first = self.workers["1.1"]
            if self.failure is not None:
                first.phase, first.failure = Phase.FAILED, self.failure
                super().poll("1.1", None, acked, wants_records)
            else:
                self.lose("1.1", "it was killed")


def test_a_job_paused_while_its_storage_hangs_is_not_begun_anew_by_a_worker_that_has_just_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "ENOUGH_S", 0.1)
    store_checkpoint(LocalStorage(tmp_path), info(5))
    hangs, begun, looks = threading.Event(), threading.Event(), CheckpointSearch.look

    def look(search: CheckpointSearch, **how: bool) -> Found:
        if fleet.late is not None:
            begun.set()
            hangs.wait(30)
        return looks(search, **how)

    monkeypatch.setattr(CheckpointSearch, "look", look)
    fleet = Relay(lambda worker: worker.phase is Phase.READY, total=100_000)

    async def act() -> None:
        scene = Scene(tmp_path, fleet=fleet, direction=Direction(goal=RunGoal.RUN, num_workers=1))
        await scene.prepare()
        await scene.until(lambda s: s.cursor > 7 * BATCH)
        scene.direction = replace(scene.direction, num_workers=2)
        await scene.until(lambda s: begun.is_set())
        scene.direction = replace(scene.direction, goal=RunGoal.PAUSE, actor="user")
        last: JobSnapshot = await scene.until(lambda s: s.outcome is not None)
        assert last.outcome is Outcome.PAUSED
        assert fleet.late is not None
        assert fleet.late.plan is None
        hangs.set()

    play(act)


def fail(search: CheckpointSearch, **how: bool) -> Found:
    raise OSError("no route to the storage")


def test_workers_that_are_adopted_while_storage_fails_train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "STORAGE_S", 0.0)

    async def act() -> None:
        first = Scene(tmp_path, fleet=FakeFleet(1, total=50))
        await first.prepare()
        await first.until(lambda s: s.num_current == 2 and s.cursor > 5 * BATCH)
        await first.controller._course.cancel()  # type: ignore[union-attr]  # it runs
        monkeypatch.setattr(CheckpointSearch, "look", fail)
        second = Scene(tmp_path, term=2, fleet=FakeFleet(2, workers=first.fleet.workers), store=first.store)
        await second.prepare()
        last: JobSnapshot = await second.until(lambda s: s.outcome is not None)
        assert last.outcome is Outcome.SUCCEEDED
        assert sorted(second.store.records) == [(1, n) for n in range(1, 51)]

    play(act)


def test_a_worker_that_tells_of_its_state_in_the_turn_in_which_the_last_holder_is_lost_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "STORAGE_S", 0.0)
    fleet, looks = Relay(lambda worker: worker.round is not None, total=50), CheckpointSearch.look

    def look(search: CheckpointSearch, **how: bool) -> Found:
        return looks(search, **how) if fleet.late is None else fail(search)

    monkeypatch.setattr(CheckpointSearch, "look", look)

    async def act() -> None:
        scene = Scene(tmp_path, fleet=fleet)
        await scene.prepare()
        last: JobSnapshot = await scene.until(lambda s: s.outcome is not None)
        assert last.outcome is Outcome.SUCCEEDED
        assert fleet.late is not None

    play(act)


def test_where_the_last_holder_fails_and_lingers_a_worker_that_has_just_come_goes_on_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    store_checkpoint(LocalStorage(tmp_path), info(5))
    fleet = Relay(lambda worker: worker.phase is Phase.READY, total=100_000, failure=OUT_OF_MEMORY)

    async def act() -> None:
        scene = Scene(tmp_path, fleet=fleet, direction=Direction(goal=RunGoal.RUN, num_workers=1))
        await scene.prepare()
        await scene.until(lambda s: s.cursor > 7 * BATCH)
        scene.direction = replace(scene.direction, num_workers=2)
        await scene.until(lambda s: fleet.late is not None and fleet.late.plan is not None)
        assert fleet.late is not None
        assert fleet.late.plan is not None
        assert fleet.late.plan.source == CheckpointSource(info(5).path, 5, info(5).cursor)

    play(act)

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.control.fake_fleet import BATCH, FakeFleet, FakeWorker
from workers.assignment import JobKey, Storage
from workers.control import pace, telemetry
from workers.control.controller import JobController
from workers.control.decisions import ControlSettings
from workers.control.launch import Launch
from workers.errors import Reason, StaleTermError
from workers.spec import parse_job_spec
from workers.status import (
    Acknowledged,
    Direction,
    JobSnapshot,
    Outcome,
    RoundRecord,
    RunGoal,
    RunPhase,
    TimelineRow,
)

KEY = JobKey(job_id="j", attempt=1)


@dataclass
class Store:
    """What the service would have committed: everything told so far, by its natural keys."""

    records: dict[tuple[int, int], RoundRecord] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    checkpoints: set[str] = field(default_factory=set)
    timeline: dict[str, TimelineRow] = field(default_factory=dict)
    answer: int = 0

    def fold(self, snapshot: JobSnapshot) -> None:
        self.answer = snapshot.number
        for record in snapshot.records:
            self.records[record.key] = record
        for chunk in snapshot.logs:
            known = self.logs.get(chunk.worker_id, b"")
            assert chunk.offset <= len(known)
            self.logs[chunk.worker_id] = known[: chunk.offset] + chunk.data
        self.checkpoints |= {info.path for info in snapshot.checkpoints}
        self.timeline |= {row.key: row for row in snapshot.timeline}

    @property
    def acked(self) -> Acknowledged:
        return Acknowledged(
            answer=self.answer,
            rounds=max(self.records, default=(0, 0)),
            committed_at=self.records[max(self.records)].time if self.records else None,
            log_offsets={worker: len(log) for worker, log in self.logs.items()},
            checkpoints=frozenset(self.checkpoints),
            timeline=frozenset(self.timeline),
            unpriced=tuple(row for row in self.timeline.values() if row.cost_s is None),
        )


@dataclass
class Scene:
    """A controller with its fleet, and a reconciler that directs it."""

    folder: Path
    term: int = 1
    fleet: FakeFleet = field(default_factory=lambda: FakeFleet(1))
    store: Store = field(default_factory=Store)
    direction: Direction = field(default_factory=lambda: Direction(goal=RunGoal.RUN, num_workers=2))
    wants: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.controller = JobController(KEY, self.term, "ns", make_fleet=lambda launch: self.fleet)

    async def prepare(self) -> None:
        await self.controller.prepare(self.term, launch(self.folder))

    async def tick(self) -> JobSnapshot:
        snapshot = await self.controller.direct(self.term, self.direction, self.store.acked)
        assert snapshot is not None
        self.store.fold(snapshot)
        return snapshot

    async def until(self, holds: Callable[[JobSnapshot], bool]) -> JobSnapshot:
        for _ in range(2000):
            snapshot = await self.tick()
            if holds(snapshot):
                return snapshot
            await asyncio.sleep(0.002)
        raise AssertionError(f"never came true; last: {snapshot}")


def launch(folder: Path) -> Launch:
    spec = parse_job_spec(
        {
            "name": "j",
            "entrypoint": "workers.recipes.digits:build",
            "steps": 20,
            "workers": {"min": 1, "max": 4},
            "batch": {"global_size": BATCH},
        }
    )
    return Launch(
        spec=spec,
        storage=Storage(checkpoints=str(folder), output=str(folder)),
        scratch=str(folder),
        settings=ControlSettings(gather_s=0.2),
    )


def play(act: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(act(), 30))


def test_it_does_nothing_before_it_was_prepared_and_directed(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path)
        assert await scene.controller.direct(1, scene.direction, Acknowledged()) is None
        await scene.prepare()
        assert scene.fleet.workers == {}
        await scene.until(lambda s: len(scene.fleet.workers) == 2)

    play(act)


def test_the_first_answer_waits_for_something_to_tell_of(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        told = await scene.controller.direct(1, scene.direction, scene.store.acked, wait_s=20.0)
        assert told is not None
        assert told.has_trained

    play(act)


def test_the_first_answer_tells_that_nothing_has_happened_where_it_is_asked_for_at_once(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        told = await scene.tick()
        assert (told.phase, told.has_trained) == (RunPhase.STARTING, False)

    play(act)


def test_a_new_attempt_begins_with_the_exchange_that_those_before_it_judged_last(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        await scene.controller.direct(1, scene.direction, Acknowledged(exchange="int8"))
        told = await scene.until(lambda s: s.plan is not None)
        assert told.plan is not None
        assert told.plan.exchange.name == "int8"

    play(act)


def test_a_job_runs_to_its_end_and_the_outcome_is_told_with_the_last_of_what_is_known(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        last = await scene.until(lambda s: s.outcome is not None)
        assert (last.outcome, last.phase) == (Outcome.SUCCEEDED, RunPhase.ENDED)
        assert sorted(scene.store.records) == [(1, n) for n in range(1, 21)]
        assert scene.store.checkpoints == {"final"}
        kinds = [row.kind.value for row in scene.store.timeline.values()]
        assert (kinds[0], kinds[-1]) == ("start", "end")
        assert scene.store.logs["1.1"] == b"".join(b"round %d\n" % n for n in range(1, 21))

    play(act)


def test_the_outcome_comes_with_the_last_portion_of_what_is_known_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MAX_SENT_LOG_BYTES", 1)

    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        before = await scene.until(lambda s: s.phase is RunPhase.STOPPING and not s.workers and bool(s.logs))
        assert before.outcome is None
        last = await scene.until(lambda s: s.outcome is not None)
        assert last.logs
        assert scene.store.logs["1.1"] == b"".join(b"round %d\n" % n for n in range(1, 21))

    play(act)


def test_only_one_member_is_asked_for_records(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        await scene.until(lambda s: s.outcome is not None)
        assert set(scene.fleet.asked_for_records) == {"1.1"}

    play(act)


def test_who_has_come_to_rest_is_asked_at_once_for_all_it_has_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Direction(goal=RunGoal.RUN, num_workers=1)
    scene = Scene(tmp_path, fleet=FakeFleet(1, total=10_000), direction=one)

    async def act() -> None:
        await scene.prepare()
        await scene.until(lambda snapshot: snapshot.num_current == 1)
        for interval in ("STEADY_S", "BRISK_S", "RECORDS_S", "TURN_S"):
            monkeypatch.setattr(pace, interval, 3600.0)
        for _ in range(2):
            scene.fleet.asked_for_records.clear()
            scene.fleet.rest("1.1")
            await scene.until(lambda _: scene.fleet.asked_for_records == ["1.1"])

    play(act)


def test_the_last_lines_of_a_lost_worker_are_fetched(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path, fleet=FakeFleet(1, total=10_000))
        await scene.prepare()
        await scene.until(lambda s: s.num_current == 2)
        scene.fleet.lose("1.1", "its process died", last_words=b"Segmentation fault\n")
        await scene.until(lambda s: scene.store.logs.get("1.1", b"").endswith(b"Segmentation fault\n"))
        assert any(row.kind == "worker_lost" for row in scene.store.timeline.values())

    play(act)


def test_a_new_term_adopts_the_workers_and_loses_no_record(tmp_path: Path) -> None:
    async def act() -> None:
        first = Scene(tmp_path, fleet=FakeFleet(1, total=50))
        await first.prepare()
        await first.until(lambda s: s.num_current == 2 and s.cursor > 5 * BATCH)
        await first.controller._course.cancel()  # type: ignore[union-attr]  # it runs
        alive: dict[str, FakeWorker] = first.fleet.workers
        second = Scene(tmp_path, term=2, fleet=FakeFleet(2, workers=alive), store=first.store)
        await second.prepare()
        last = await second.until(lambda s: s.outcome is not None)
        assert last.outcome is Outcome.SUCCEEDED
        assert sorted(second.store.records) == [(1, n) for n in range(1, 51)]
        assert second.store.timeline["term/2"].kind == "controller_lost"
        assert "2.1" not in second.store.logs

    play(act)


def test_a_loss_of_worker_and_controller_together_is_priced_by_the_successor(tmp_path: Path) -> None:
    async def act() -> None:
        first = Scene(tmp_path, fleet=FakeFleet(1, total=100))
        await first.prepare()
        await first.until(lambda s: s.num_current == 2 and s.cursor > 5 * BATCH)
        await first.controller._course.cancel()  # type: ignore[union-attr]  # it runs
        for worker in first.fleet.workers.values():
            # The predecessor's last deed: everything that was told is stored.
            for record in worker.records:
                first.store.records[record.key] = record
        first.fleet.lose("1.2", "killed")
        first.fleet.workers["1.1"].leave_group()
        fleet = FakeFleet(2, total=100, workers=first.fleet.workers)
        second = Scene(tmp_path, term=2, fleet=fleet, store=first.store)
        await second.prepare()
        await second.until(lambda s: s.outcome is not None)
        assert [row for row in second.store.timeline.values() if row.kind == "worker_lost"] != []
        assert [row.key for row in second.store.timeline.values() if row.cost_s is None] == []

    play(act)


def test_a_new_term_that_finds_nobody_begins_a_lineage_of_its_own(tmp_path: Path) -> None:
    async def act() -> None:
        first = Scene(tmp_path, fleet=FakeFleet(1, total=10_000))
        await first.prepare()
        await first.until(lambda s: bool(first.store.records))
        await first.controller._course.cancel()  # type: ignore[union-attr]  # it runs
        stored = set(first.store.records)
        second = Scene(tmp_path, term=2, fleet=FakeFleet(2), store=first.store)
        await second.prepare()
        await second.until(lambda s: max(second.store.records)[0] == 2)
        assert stored <= set(second.store.records)
        await second.controller._course.cancel()  # type: ignore[union-attr]  # it runs

    play(act)


def test_calls_of_another_term_are_refused(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path)
        await scene.prepare()
        for term in (0, 2):
            with pytest.raises(StaleTermError):
                await scene.controller.direct(term, scene.direction, Acknowledged())

    play(act)


def test_a_superseded_controller_leaves(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path, fleet=FakeFleet(1, total=10_000))
        await scene.prepare()
        await scene.until(lambda s: s.num_current == 2)
        scene.fleet.supersede()
        await asyncio.wait_for(scene.controller._course._task, 10)  # type: ignore[union-attr]  # it runs
        assert scene.fleet.has_left

    play(act)


def test_a_crash_of_the_loop_is_told_and_frees_the_workers(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path, fleet=FakeFleet(1, total=10_000))
        await scene.prepare()
        await scene.until(lambda s: s.num_current == 2)
        scene.fleet.breaks_on_poll = KeyError("bug")
        last = await scene.until(lambda s: s.outcome is not None)
        assert (last.outcome, last.reason) == (Outcome.FAILED, Reason.CONTROLLER_ERROR)
        assert last.failure is not None
        assert "KeyError" in last.failure.traceback
        assert scene.fleet.workers == {}

    play(act)


def test_a_crash_is_told_once_the_workers_are_gone_and_their_last_rounds_are_known(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path, fleet=FakeFleet(1, total=10_000))
        await scene.prepare()
        await scene.until(lambda s: s.num_current == 2)
        scene.fleet.lingers = True
        scene.fleet.breaks_on_start = KeyError("bug")
        scene.fleet.lose("1.2", "killed")
        told = await scene.until(lambda s: scene.fleet.told_to_save == {"1.1"})
        assert (told.phase, told.outcome) == (RunPhase.STOPPING, None)
        num_rounds = scene.fleet.workers["1.1"].round
        await scene.until(lambda s: max(scene.store.records) == (1, num_rounds))
        scene.fleet.lose("1.1", "it ended")
        last = await scene.until(lambda s: s.outcome is not None)
        assert (last.outcome, last.reason) == (Outcome.FAILED, Reason.CONTROLLER_ERROR)

    play(act)


def test_a_controller_that_is_ended_early_ends_its_workers(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path, fleet=FakeFleet(1, total=10_000))
        await scene.prepare()
        await scene.until(lambda s: s.num_current == 2)
        await scene.controller._course.finish()  # type: ignore[union-attr]  # it runs
        assert scene.fleet.workers == {}
        assert scene.fleet.told_to_save == {"1.1", "1.2"}

    play(act)


def test_a_cancelled_job_ends_without_saving(tmp_path: Path) -> None:
    async def act() -> None:
        scene = Scene(tmp_path, fleet=FakeFleet(1, total=10_000))
        await scene.prepare()
        await scene.until(lambda s: s.num_current == 2)
        scene.direction = Direction(goal=RunGoal.CANCEL, num_workers=2)
        last = await scene.until(lambda s: s.outcome is not None)
        assert last.outcome is Outcome.CANCELLED
        assert scene.store.checkpoints == set()

    play(act)


def test_the_rendezvous_is_reached_through_the_controller(tmp_path: Path) -> None:
    async def act() -> None:
        controller = Scene(tmp_path).controller
        waiter = asyncio.create_task(controller.kv_get("1/1", "a", 10))
        await asyncio.sleep(0)
        await controller.kv_set("1/1", "a", b"x")
        assert await waiter == b"x"
        assert await controller.kv_add("1/1", "n", 2) == 2
        assert await controller.kv_check("1/1", ["a", "n"])

    play(act)

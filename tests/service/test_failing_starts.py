"""Controllers that do not start, and storage that is away while jobs start, lose their controller or are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.explain import Circumstances, explain
from service.folders import checkpoints_place
from service.ports import ControllerFaultError, ControllerLostError, ControllerSilentError
from service.reconciler.starting import MAX_STARTS, MOST_S, REMEDY, STEADY_S, Backoff
from service.records import JobRow
from service.states import JobState, Verb
from service.store.opening import Store
from tests.fakes import FakeCluster
from tests.service.given import Clock
from tests.service.scene import Scene, last_key
from tests.service.test_reconciler import checkpoint, save_checkpoint
from workers.assignment import JobKey
from workers.errors import Reason
from workers.status import Acknowledged, Direction, JobSnapshot

pytestmark = pytest.mark.anyio

DIED = ControllerLostError("its constructor died")
ALONE = Circumstances(before=(), num_before=0, cluster=None, now_s=0.0)


@pytest.fixture
def held(scene: Scene, store: Store) -> Scene:
    """Time between tries passes only when the test says so; jobs do not end by themselves."""
    return Scene(store, scene.settings, scene.fence, FakeCluster(total=1_000_000), monotonic_s=Clock())


def wait(scene: Scene, seconds: float) -> None:
    assert isinstance(scene.monotonic_s, Clock)
    scene.monotonic_s.advance(seconds)


async def looks(scene: Scene, job: JobRow) -> JobRow:
    for _ in range(4):
        await scene.look()
    return await scene.job(job)


async def running(scene: Scene, job: JobRow) -> None:
    await scene.until(job, lambda row: row.num_current == 4 and row.state is JobState.RUNNING)
    await scene.reconciler.settle(5)


class Cupboard:
    """Storage that can be taken away: where its folder was there is none to be read."""

    def __init__(self, place: str) -> None:
        self._place = Path(place)
        self._place.mkdir(parents=True, exist_ok=True)
        self._aside = self._place.with_name("aside")

    def close(self) -> None:
        self._place.rename(self._aside)
        self._place.touch()

    def open(self) -> None:
        self._place.unlink()
        self._aside.rename(self._place)


async def heir(scene: Scene) -> JobRow:
    """A job that begins with the checkpoint of another one."""
    source = await scene.submit(name="source")
    await scene.say(source, Verb.CANCEL)
    save_checkpoint(scene, source, step=5)
    await scene.store.reconciler.register_checkpoints(source.id, [checkpoint(5)], scene.fence)
    return await scene.submit(name="heir", init_from={"job": source.id, "step": 5})


@pytest.mark.parametrize("refusal", [DIED, ControllerFaultError("prepare failed: KeyError")])
async def test_a_controller_that_cannot_start_is_tried_ever_later_and_at_last_the_job_fails_with_the_error(
    held: Scene, refusal: ControllerLostError | ControllerFaultError
) -> None:
    held.cluster.refusal = refusal
    job = await held.submit()
    for num_starts in range(1, MAX_STARTS):
        row = await looks(held, job)
        assert (row.state, len(held.cluster.launches)) == (JobState.STARTING, num_starts)
        told = explain(row, ALONE)
        assert str(refusal) in told.summary
        assert (told.remedy, str(num_starts) in told.details[0]) == (REMEDY, True)
        wait(held, 0.5 * 2 ** (num_starts - 1) - 0.1)
        assert (await looks(held, job)).term == row.term
        assert len(held.cluster.launches) == num_starts
        assert not held.reconciler.is_brisk, "nothing is to be expected before the next try"
        wait(held, 0.1)
    row = await looks(held, job)
    assert (row.state, row.reason, len(held.cluster.launches)) == (
        JobState.FAILED,
        Reason.CONTROLLER_ERROR,
        MAX_STARTS,
    )
    told = explain(row, ALONE)
    assert f"did not start in {MAX_STARTS} tries: {refusal}" in told.summary
    assert told.remedy == REMEDY
    assert await held.cluster.names() == []


async def test_a_start_that_is_tried_for_longer_than_a_place_is_waited_for_fails(held: Scene) -> None:
    held.cluster.refusal = DIED
    job = await held.submit()
    await looks(held, job)
    wait(held, held.settings.place_s)
    assert (await looks(held, job)).state is JobState.FAILED
    assert len(held.cluster.launches) == 1


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.PAUSE, None])
async def test_what_workers_saved_under_a_controller_that_nobody_heard_is_on_the_list_once_the_job_rests(
    held: Scene, verb: Verb | None
) -> None:
    held.cluster.refusal = ControllerSilentError("it did not answer")
    job = await held.submit()
    await looks(held, job)
    save_checkpoint(held, job, step=5)
    if verb is None:
        wait(held, held.settings.place_s)
    else:
        await held.say(job, verb)
    row = await looks(held, job)
    assert row.state in (JobState.CANCELLED, JobState.PAUSED, JobState.FAILED)
    assert await held.store.reconciler.checkpoints(job.id) == [checkpoint(5)]


async def test_a_start_that_succeeds_at_last_leaves_no_word_of_those_in_vain(held: Scene) -> None:
    held.cluster.refusal = DIED
    job = await held.submit()
    assert (await looks(held, job)).explanation is not None
    held.cluster.refusal = None
    wait(held, 0.5)
    await running(held, job)
    row = await held.job(job)
    assert (row.term, row.explanation) == (2, None)


async def test_controllers_that_were_heard_of_are_succeeded_at_once_each_time(held: Scene) -> None:
    job = await held.submit()
    await running(held, job)
    workers = set(held.cluster.workers[last_key(held)])
    for term in (1, 2, 3):
        await held.cluster.lose_controller(f"controller/{job.id}/1/{term}")
        await held.until(job, lambda row, before=term: row.term == before + 1)
        await running(held, job)
        await looks(held, job)
    assert set(held.cluster.workers[last_key(held)]) == workers
    assert await held.passed(job) == ["QUEUED", "STARTING", "RUNNING"]


async def lose(scene: Scene, job: JobRow) -> None:
    row = await scene.job(job)
    await scene.cluster.lose_controller(f"controller/{job.id}/1/{row.term}")


async def placeless(scene: Scene) -> JobRow:
    """A job whose controller has told of itself, and whose workers wait for a place."""
    job = await scene.submit()
    await scene.store.reconciler.admit(job, 4, scene.fence)
    scene.cluster.machines = ()
    await scene.until(job, lambda row: row.is_heard_of)
    return job


async def test_controllers_that_tell_once_and_die_are_succeeded_ever_later_until_the_job_fails(held: Scene) -> None:
    job = await placeless(held)
    await lose(held, job)  # one that was of use, as it told first of all that its workers wait
    await looks(held, job)
    waited_s, pause_s = 0.0, 0.5
    while waited_s < held.settings.place_s:
        await lose(held, job)
        row = await looks(held, job)
        assert (row.state, row.explanation is not None) == (JobState.STARTING, True)
        assert "Its controllers end before anything is trained" in explain(row, ALONE).summary
        num_launches = len(held.cluster.launches)
        wait(held, pause_s - 0.1)
        assert len(held.cluster.launches) == num_launches, "it is not yet time"
        wait(held, 0.1)
        row = await looks(held, job)
        waited_s, pause_s = waited_s + pause_s, min(MOST_S, 2 * pause_s)
    assert (row.state, row.reason) == (JobState.FAILED, Reason.CONTROLLER_ERROR)
    assert row.failure is not None
    assert "nothing was trained under its controllers in" in row.failure.message


async def test_a_controller_that_has_lived_for_long_is_succeeded_at_once(held: Scene) -> None:
    job = await placeless(held)
    for _ in range(2):
        await lose(held, job)
        await looks(held, job)
    assert (await held.job(job)).explanation is not None
    wait(held, 0.5)
    await looks(held, job)
    wait(held, max(STEADY_S, held.settings.place_s))
    await looks(held, job)
    term = (await held.job(job)).term
    await lose(held, job)
    assert (await looks(held, job)).term == term + 1


async def test_workers_that_train_on_are_not_given_up_for_a_few_starts_in_vain(held: Scene) -> None:
    job = await held.submit()
    await running(held, job)
    workers = set(held.cluster.workers[last_key(held)])
    held.cluster.refusal = DIED
    await held.cluster.lose_controller(f"controller/{job.id}/1/1")
    for num_starts in range(MAX_STARTS + 1):
        row = await looks(held, job)
        assert (row.state, row.term) == (JobState.RUNNING, num_starts + 2)
        wait(held, 0.5 * 2**num_starts)
    assert row.explanation is not None
    held.cluster.refusal = None
    await running(held, job)
    assert set(held.cluster.workers[last_key(held)]) == workers
    assert (await looks(held, job)).explanation is None


@pytest.mark.parametrize(("verb", "end"), [(Verb.CANCEL, JobState.CANCELLED), (Verb.PAUSE, JobState.PAUSED)])
async def test_a_job_that_never_started_ends_at_once_when_its_owner_says_so(
    held: Scene, verb: Verb, end: JobState
) -> None:
    held.cluster.refusal = DIED
    job = await held.submit()
    await looks(held, job)
    await held.say(job, verb)
    assert (await looks(held, job)).state is end
    assert len(held.cluster.launches) == 1


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_job_waits_for_storage_that_is_away_and_spends_no_term_on_it(held: Scene, is_whole: bool) -> None:
    """Also where only what it begins with is away."""
    job = await heir(held)
    assert job.spec.init_from is not None
    url = held.settings.storage_url
    cupboard = Cupboard(url if is_whole else checkpoints_place(url, job.spec.init_from.job))
    cupboard.close()
    for _ in range(MAX_STARTS + 3):
        row = await looks(held, job)
        assert (row.state, row.term, held.cluster.launches) == (JobState.STARTING, 1, [])
        told = explain(row, ALONE)
        assert f"The storage {url} cannot be read: NotADirectoryError" in told.summary
        assert "it is tried again" in told.summary
        wait(held, MOST_S)
    cupboard.open()
    await running(held, job)
    row = await held.job(job)
    assert (row.term, row.explanation) == (1, None)


async def test_a_job_that_waits_for_storage_can_be_cancelled(held: Scene) -> None:
    cupboard, job = Cupboard(held.settings.storage_url), await held.submit()
    cupboard.close()
    await looks(held, job)
    await held.say(job, Verb.CANCEL)
    assert (await looks(held, job)).state is JobState.CANCELLED


async def test_a_controller_lost_while_storage_is_away_is_succeeded_when_it_is_back(held: Scene) -> None:
    cupboard, job = Cupboard(held.settings.storage_url), await held.submit()
    await running(held, job)
    workers = set(held.cluster.workers[last_key(held)])
    cupboard.close()
    await held.cluster.lose_controller(f"controller/{job.id}/1/1")
    for _ in range(MAX_STARTS + 1):
        row = await looks(held, job)
        assert (row.state, row.term) == (JobState.RUNNING, 1)
        wait(held, MOST_S)
    assert row.explanation is not None
    cupboard.open()
    await held.until(job, lambda row: row.term == 2)
    await running(held, job)
    assert set(held.cluster.workers[last_key(held)]) == workers


async def test_a_reconciler_begins_while_storage_is_away_and_finds_checkpoints_later(held: Scene) -> None:
    cupboard, job = Cupboard(held.settings.storage_url), await held.submit()
    await running(held, job)
    save_checkpoint(held, job, step=10)
    cupboard.close()
    await held.restart()
    row = await looks(held, job)
    assert (row.state, row.num_current) == (JobState.RUNNING, 4)
    assert row.explanation is not None
    assert "cannot be read" in row.explanation.summary
    cupboard.open()
    wait(held, 0.5)
    assert (await looks(held, job)).explanation is None
    assert [c.step for c in await held.store.reconciler.checkpoints(job.id)] == [10]


async def test_a_job_lost_while_storage_is_away_is_queued_when_it_is_back(held: Scene) -> None:
    cupboard, job = Cupboard(held.settings.storage_url), await held.submit()
    await running(held, job)
    save_checkpoint(held, job, step=10)
    cupboard.close()
    await held.cluster.lose_everything()
    await held.restart()
    row = await looks(held, job)
    assert (row.attempt, row.term, len(held.cluster.launches)) == (1, 1, 1)
    cupboard.open()
    wait(held, 0.5)
    row = await held.until(job, lambda row: row.attempt == 2 and row.state is JobState.RUNNING)
    assert [c.step for c in await held.store.reconciler.checkpoints(job.id)] == [10]


class Closing(FakeCluster):
    """Takes storage away as the first outcome is told."""

    cupboard: Cupboard | None = None

    async def direct(
        self, key: JobKey, term: int, direction: Direction, acked: Acknowledged, bound_s: float, wait_s: float
    ) -> JobSnapshot | None:
        snapshot = await super().direct(key, term, direction, acked, bound_s, wait_s)
        if snapshot is not None and snapshot.outcome is not None and self.cupboard is not None:
            self.cupboard.close()
            self.cupboard = None
        return snapshot


async def test_a_job_that_ends_as_storage_goes_away_moves_on_once_its_checkpoints_are_listed(
    scene: Scene, store: Store
) -> None:
    cluster = Closing()
    scene = Scene(store, scene.settings, scene.fence, cluster, monotonic_s=Clock())
    cluster.cupboard = cupboard = Cupboard(scene.settings.storage_url)
    job = await scene.submit(steps=20)
    save_checkpoint(scene, job, step=2)
    row = await scene.until(job, lambda row: row.explanation is not None)
    assert row.state is not JobState.SUCCEEDED
    cupboard.open()
    wait(scene, 0.5)
    row = await scene.until_state(job, JobState.SUCCEEDED)
    assert row.explanation is None
    assert [c.step for c in await scene.store.reconciler.checkpoints(job.id)] == [2]


async def test_a_job_that_is_cancelled_while_storage_is_away_has_its_checkpoints_listed_once_that_is_back(
    held: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reconciler.reaper.REAP_S", 0.0)
    cupboard = Cupboard(held.settings.storage_url)
    job = await held.submit()
    await running(held, job)
    save_checkpoint(held, job, step=10)
    cupboard.close()
    await held.say(job, Verb.CANCEL)
    await held.until_state(job, JobState.CANCELLED)
    await looks(held, job)
    assert await held.store.reconciler.checkpoints(job.id) == []
    cupboard.open()
    await looks(held, job)
    assert await held.store.reconciler.checkpoints(job.id) == [checkpoint(10)]


def test_pauses_between_tries_double_up_to_half_a_minute() -> None:
    backoff, pauses = Backoff(), []
    for _ in range(9):
        assert backoff.is_due(0.0) is (not pauses)
        backoff = backoff.failed(0.0)
        pauses.append(backoff.due_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]

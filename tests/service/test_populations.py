"""Populations followed by the leader: running jobs get another's state and another rate, and the books say so."""

from __future__ import annotations

import math

import pytest

from service.records import TimelineEntry
from service.states import JobState, Verb
from service.sweep_records import SweepRow, SweepState, SweepView
from tests.fakes import FakeCluster
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.oracle import Case, judge
from tests.service.scene import Scene
from tests.service.test_searching import has_ended, submit, until
from tests.stored_checkpoint import store_checkpoint
from tuning.orders import Places
from tuning.trial import TrialState
from tuning.turns import NUM_PARTS
from workers.assignment import JobKey
from workers.checkpoints import checkpoint_name
from workers.local_storage import LocalStorage
from workers.plan import Plan, TimelineKind
from workers.status import Acknowledged, CheckpointInfo, Direction, JobSnapshot, Outcome

pytestmark = pytest.mark.anyio

NUM_ROUNDS, BATCH, STRIDE = 80, 8, 20


def measured(plan: Plan, round: int) -> dict[str, float]:
    """The nearer the rate is to 0.01, the lower is what an evaluation finds at the end of each stride.

    Only the rate decides: trials report in any order, and who is worst must be so beside values of a stride before.
    """
    found = {"eval.error": 100.0 ** abs(math.log10(plan.lr.lr) + 2.0)} if round % STRIDE == 0 else {}
    return {"loss": 1.0 / round, **found}


async def begun(scene: Scene, kind: str) -> SweepRow:
    scene.cluster.total, scene.cluster.measured, scene.cluster.upto = NUM_ROUNDS, measured, 0
    job = {
        "entrypoint": "workers.recipes.digits:build",
        "samples": NUM_ROUNDS * BATCH,
        "batch": {"global_size": BATCH},
    }
    return await submit(scene, job=job, metric="eval.error", population=kind, trials=4, parallel=4)


async def stride(scene: Scene, sweep: SweepRow) -> SweepView:
    """All trials train a stride further, and what is decided then is carried out."""
    scene.cluster.upto += STRIDE
    samples = scene.cluster.upto * BATCH
    await until(scene, sweep, lambda view: len(view.trials) == 4 and all(t.samples >= samples for t in view.trials))
    await scene.look()
    await scene.look()
    view = await carried_out(scene, sweep)
    for trial in view.trials:
        if trial.number in view.places.training:
            while len(await donations(scene, trial.job_id)) < len(trial.course.changes):
                await scene.look()
    return view


async def carried_out(scene: Scene, sweep: SweepRow) -> SweepView:
    """None that trains is told of another's state still; who waits for a place takes it over once it has one."""
    for _ in range(2000):
        await scene.look()
        view = await scene.store.reconciler.sweep_view(sweep.id, -1)
        assert view is not None
        if not any(trial.course.taking for trial in view.trials if trial.number in view.places.training):
            return view
    raise AssertionError("what was decided was never carried out")


async def donations(scene: Scene, job_id: str) -> list[TimelineEntry]:
    """The rows that tell of another job's state."""
    return [row for row in await scene.store.telemetry.timeline(job_id, 0, 1000) if "donor" in row.after]


def assert_books_are_clean(scene: Scene, database_url: str) -> None:
    settings = scene.settings.model_copy(update={"database": database_url})
    assert_nothing_found(judge(Case(evidence=gather(settings))))


def num_changes(view: SweepView) -> int:
    return sum(len(trial.course.changes) for trial in view.trials)


@pytest.mark.parametrize("kind", ["pbt", "pb2"])
async def test_bad_trials_go_on_from_good_ones_without_a_restart(scene: Scene, kind: str, database_url: str) -> None:
    sweep = await begun(scene, kind)
    for _ in range(NUM_ROUNDS // STRIDE):
        await stride(scene, sweep)
    view = await until(scene, sweep, has_ended)
    await scene.look()
    assert view.sweep.state is SweepState.SUCCEEDED
    assert {trial.state for trial in view.trials} == {TrialState.COMPLETE}
    assert num_changes(view) >= 1
    assert len(scene.cluster.launches) == 4  # nothing was started again
    for trial in view.trials:
        job = await scene.store.reconciler.job(trial.job_id)
        assert job is not None
        assert (job.state, job.attempt, job.samples) == (JobState.SUCCEEDED, 1, NUM_ROUNDS * BATCH)
        rows = await donations(scene, job.id)
        assert len(rows) == len(trial.course.changes) == (job.settings.n if job.settings else 0)
        for change, row in zip(trial.course.changes, rows, strict=True):
            assert (row.actor, row.reason, row.after["samples"]) == (kind, change.reason, change.samples)
            assert change.donor is not None
            assert row.after["donor"] == view.trials[change.donor].job_id
            assert row.steps_lost == 0
        assert trial.reports == tuple(sorted(trial.reports, key=lambda report: report.samples))
        if job.settings is not None:
            assert job.settings.lr == trial.params["optimizer.lr"] == trial.course.changes[-1].params["optimizer.lr"]
    assert_books_are_clean(scene, database_url)


async def test_where_epochs_say_how_far_trials_train_the_first_stands_for_a_moment_at_each_interval(
    scene: Scene, database_url: str
) -> None:
    def at_lines(plan: Plan, round: int) -> dict[str, float]:
        """As a job evaluates whose own interval is longer than its training."""
        is_line = plan.until is not None and (round - 1) * BATCH < plan.until <= round * BATCH
        return {"loss": 1.0 / round, **({"eval.error": 1.0 / round} if is_line or round == NUM_ROUNDS else {})}

    scene.cluster.total, scene.cluster.measured = NUM_ROUNDS, at_lines
    job = {"entrypoint": "workers.recipes.digits:build", "epochs": 8, "batch": {"global_size": BATCH}}
    sweep = await submit(scene, job=job, metric="eval.error", population="pbt", trials=2, parallel=2)
    await until(scene, sweep, has_ended)
    view = await scene.store.reconciler.sweep_view(sweep.id, -1)
    assert view is not None
    assert {trial.state for trial in view.trials} == {TrialState.COMPLETE}
    specs = [await scene.store.reconciler.job(trial.job_id) for trial in view.trials]
    assert [job and job.spec.eval_every_steps for job in specs] == [100, NUM_ROUNDS // NUM_PARTS]
    rows = await scene.store.telemetry.timeline(view.trials[0].job_id, 0, 1000)
    limits = [(row.actor, row.reason) for row in rows if row.kind == TimelineKind.LIMIT]
    moved = [reason for actor, reason in limits if actor == "sweep"]
    assert len(moved) >= NUM_PARTS
    assert moved[-1] == "its sweep lets it train to its end"
    assert len(view.trials[0].reports) > NUM_PARTS
    assert len(moved) == len(limits)
    assert_books_are_clean(scene, database_url)


class Saving(FakeCluster):
    """Jobs that pause leave their states in storage, as real ones do."""

    async def direct(
        self, key: JobKey, term: int, direction: Direction, acked: Acknowledged, bound_s: float, wait_s: float
    ) -> JobSnapshot | None:
        told = await super().direct(key, term, direction, acked, bound_s, wait_s)
        if told is not None and told.outcome is Outcome.PAUSED:
            [launch] = [launch for of, _, launch in self.launches if of == key]
            info = CheckpointInfo(
                path=checkpoint_name(key.attempt, told.lineage, told.cursor // BATCH, 1),
                attempt=key.attempt,
                lineage=told.lineage,
                generation=1,
                round=told.cursor // BATCH,
                step=told.cursor // BATCH,
                cursor=told.cursor,
                size_bytes=1,
                metric=None,
                is_final=False,
                created_at=0.0,
            )
            store_checkpoint(LocalStorage(launch.storage.checkpoints), info)
        return told


async def test_with_places_for_half_of_them_trials_take_turns_and_go_on_from_each_other(
    scene: Scene, database_url: str
) -> None:
    scene.cluster = Saving(num_cpus=2.0)
    await scene.restart()
    sweep = await begun(scene, "pbt")
    for _ in range(NUM_ROUNDS // STRIDE):
        await stride(scene, sweep)  # which none of them gets through alone
    view = await until(scene, sweep, has_ended)
    assert {trial.state for trial in view.trials} == {TrialState.COMPLETE}
    changes = [change for trial in view.trials for change in trial.course.changes]
    assert changes
    assert all(change.donor is not None for change in changes)  # also where the donor waits for its turn
    jobs = [await scene.store.reconciler.job(trial.job_id) for trial in view.trials]
    assert [job and (job.state, job.samples) for job in jobs] == [(JobState.SUCCEEDED, NUM_ROUNDS * BATCH)] * 4
    assert_books_are_clean(scene, database_url)


async def test_who_would_have_the_next_place_is_told_up_to_the_first_job_of_somebody_else(scene: Scene) -> None:
    scene.cluster.num_cpus = 0.0
    other = await scene.submit()
    sweep = await begun(scene, "pbt")
    view = await until(scene, sweep, lambda view: len(view.trials) == 4)
    assert view.places == Places()
    await scene.say(other, Verb.CANCEL)
    await scene.look()
    found = await scene.store.reconciler.sweep_view(sweep.id, -1)
    assert found is not None
    assert found.places == Places(lacking=(0, 1, 2, 3))


async def test_a_population_goes_on_after_its_controller_and_its_reconciler_are_gone(
    scene: Scene, database_url: str
) -> None:
    sweep = await begun(scene, "pbt")
    for turn in range(NUM_ROUNDS // STRIDE):
        before = await stride(scene, sweep)
        if turn == 0:
            scene.cluster.searches.clear()
        if turn == 1:
            await scene.restart()
            await scene.look()  # what was reported by now is learned; of what comes then it decides
    assert num_changes(before) > 0
    view = await until(scene, sweep, has_ended)
    assert {trial.state for trial in view.trials} == {TrialState.COMPLETE}
    assert [trial.course.changes for trial in view.trials] == [trial.course.changes for trial in before.trials]
    assert_books_are_clean(scene, database_url)

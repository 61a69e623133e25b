"""Who waits before the trials of a population, so that they do not take turns: whoever would have the next place."""

from __future__ import annotations

import pytest

from service.states import JobState, Verb
from tests.service.given import Clock
from tests.service.scene import Scene
from tests.service.test_populations import NUM_ROUNDS, STRIDE, Saving, begun, stride
from tests.service.test_searching import has_ended, until
from tuning.orders import Places
from tuning.trial import TrialState

pytestmark = pytest.mark.anyio


async def test_a_job_that_fits_nowhere_does_not_keep_trials_behind_it_from_taking_turns(
    scene: Scene, clock: Clock
) -> None:
    scene.cluster = Saving(num_cpus=2.0)
    await scene.restart()
    other = await scene.submit(workers=3)
    clock.advance(1.0)
    sweep = await begun(scene, "pbt")
    for _ in range(NUM_ROUNDS // STRIDE):
        await stride(scene, sweep)
    view = await until(scene, sweep, has_ended)
    assert {trial.state for trial in view.trials} == {TrialState.COMPLETE}
    waits = await scene.store.reconciler.job(other.id)
    assert waits is not None
    assert waits.state is JobState.QUEUED


async def test_the_next_place_is_that_of_the_first_job_that_could_have_it(scene: Scene, clock: Clock) -> None:
    scene.cluster.num_cpus = 0.0
    strangers = [await scene.submit(workers=3) for _ in range(2)]
    stuck = [job.id for job in strangers]
    clock.advance(1.0)
    sweep = await begun(scene, "pbt")
    view = await until(scene, sweep, lambda view: len(view.trials) == 4)
    clock.advance(1.0)
    last = await scene.submit()

    async def places(*passed_over: str) -> Places:
        found = await scene.store.reconciler.sweep_view(sweep.id, -1, passed_over)
        assert found is not None
        return found.places

    assert await places() == await places(stuck[0]) == await places(stuck[1], last.id) == Places()
    own = [trial.job_id for trial in view.trials]
    assert await places(*stuck) == await places(*stuck, last.id, *own) == Places(lacking=(0, 1, 2, 3))
    await scene.say(strangers[0], Verb.CANCEL)
    assert await places(stuck[1]) == Places(lacking=(0, 1, 2, 3))

"""The controller of a job dies before and after everything that it does on Ray; the next term finds out and goes on."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from service.services import build_services
from service.settings import Settings
from service.states import ENDED_STATES, JobState, Verb
from tests.faults.crash_points import CrashPoint, When, methods_of
from tests.faults.processes import CLUSTER, RECONCILER, Installation
from tests.faults.scene import Scene
from tests.faults.stirs import lose_a_controller, pair, scale, use_a_bundle, workers_of
from workers.control import hands
from workers.control.hands import Hands

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

OFTEN = {"names": 2, "start": 2, "poll": 5, "stop": 2}
"""Calls that mean another thing each time: at an adoption or before a start, of the first worker or a later one, with a
plan, at the end."""

NUM_POLLS = 5
"""So many from the command on: before the plan that says so, with it, and while they save."""

HARMLESS = {"ask_node", "has_lost", "give_up"}
"""The first changes nothing, and is done only where all workers of a job are silent, of whom nothing may be left to
save. The others are for one that has no place yet: a question, and a ``kill``.
"""

HANDS_OF_RAY = {"actor.py", "controller.py", "hosted.py", "ray_hands.py", "spares.py"}
"""Of these ``actor.py`` is the workers' own side, ``spares.py`` and ``hosted.py`` the reconciler's; ``controller.py``
ends itself."""


@pytest.fixture
async def scene(settings: Settings) -> AsyncIterator[Scene]:
    quick = settings.model_copy(update={"leader_lease_s": 1.0, "liveness_s": 2.0})
    with Installation(quick, names=(CLUSTER, RECONCILER)) as installation:
        made = Scene(installation, build_services(quick), is_tending=True)
        await installation.cluster.have_autoscaler(False)
        yield made
        await made.services.store.close()


async def come_and_go(scene: Scene) -> None:
    """A job whose first worker was a spare."""

    async def is_ready() -> bool:
        return bool((await scene.installation.cluster.remains()).spares)

    await scene.until("a spare", is_ready)
    await scene.submit()


async def come_where_spares_get_no_room(scene: Scene) -> None:
    await scene.installation.cluster.give_room(False)
    await come_and_go(scene)


async def come_of_a_sweep(scene: Scene) -> None:
    """Trials one after another, in one process that was a spare."""

    async def is_ready() -> bool:
        return bool((await scene.installation.cluster.remains()).spares)

    await scene.until("a spare", is_ready)
    await scene.search(trials=6, parallel=1)


async def come_of_a_sweep_without_spares(scene: Scene) -> None:
    """On an idle node, which an autoscaler shall be free to take away."""
    await scene.installation.cluster.have_autoscaler(True)
    await scene.search(trials=6, parallel=1)


async def come_as_a_new_process(scene: Scene) -> None:
    await scene.submit(env={"OMP_NUM_THREADS": "2"})


async def two_workers(scene: Scene) -> list[str]:
    """Those of a new job, after all before: beside another it may end before there is room for a second worker."""

    async def is_free() -> bool:
        counts = await scene.services.jobs.count_by_state()
        return all(state in ENDED_STATES for state, count in counts.items() if count)

    await scene.until("room for two", is_free)
    return await workers_of(scene, await pair(scene))


async def lose_one_of_two(scene: Scene) -> None:
    await scene.installation.cluster.kill((await two_workers(scene))[1:])


async def freeze_one_of_two(scene: Scene) -> None:
    await scene.installation.cluster.freeze((await two_workers(scene))[1])


STIRS: Mapping[str, tuple[Callable[[Scene], Awaitable[None]], ...]] = {
    "names": (come_and_go,),
    "find": (lose_a_controller,),
    "node_of": (lose_a_controller,),
    "nearest": (come_and_go,),
    "another": (come_of_a_sweep_without_spares,),
    "take": (come_and_go,),
    "spare": (come_and_go,),
    "seat": (come_and_go,),
    "waiting": (come_of_a_sweep,),
    "call_up": (come_of_a_sweep,),
    "give_back": (come_where_spares_get_no_room,),
    "create": (come_as_a_new_process,),
    "start": (come_and_go,),
    "poll": (come_and_go,),
    "halt": (lose_one_of_two,),
    "stop": (come_and_go, scale),
    "watch": (come_and_go,),
    "tail": (lose_one_of_two,),
    "kill": (freeze_one_of_two,),
    "put": (use_a_bundle,),
}


def test_everything_that_a_controller_does_on_ray_is_a_crash_point() -> None:
    assert set(STIRS) | HARMLESS == set(methods_of(Hands))
    assert set(OFTEN) <= set(STIRS)
    callers = {file.name for file in Path(hands.__file__).parent.glob("*.py") if calls_actors(file)}
    assert callers <= HANDS_OF_RAY


def calls_actors(file: Path) -> bool:
    """Whether a file speaks to actors, or to Ray itself in more than the names of its errors."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and node.attr == "remote":
            return True
        if isinstance(node, ast.Import) and any(name.name == "ray" for name in node.names):
            return file.name != "roster.py"  # which the hands hold
    return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", STIRS)
async def test_a_controller_that_dies_at_a_call_is_succeeded_and_nothing_is_lost(scene: Scene, method: str) -> None:
    cluster = scene.installation.cluster
    for nth, when, stir in product(range(1, OFTEN.get(method, 1) + 1), When, STIRS[method]):
        point = CrashPoint(method=method, when=when, nth=nth)
        await cluster.arm(point)
        await stir(scene)
        await scene.until(f"the crash point {point}", cluster.has_struck)
        await cluster.give_room(True)
    await scene.judged()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_a_controller_that_dies_while_its_workers_save_is_succeeded_and_no_step_is_lost(
    scene: Scene, when: When
) -> None:
    struck = []
    for nth in range(1, NUM_POLLS + 1):
        job_id = await scene.running()
        await scene.services.jobs.command(job_id, Verb.PAUSE)
        await scene.installation.cluster.arm(CrashPoint(method="poll", when=when, nth=nth))
        await scene.until("the pause", partial(scene.is_in, job_id, JobState.PAUSED, JobState.SUCCEEDED))
        struck.append(await scene.installation.cluster.has_struck())
        if await scene.is_in(job_id, JobState.PAUSED):
            await scene.services.jobs.command(job_id, Verb.RESUME)
    assert sum(struck) > 1, "the controller did not die"
    await scene.judged()

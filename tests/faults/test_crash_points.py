"""The reconciler dies, or is failed, before and after every call of its ports; the API at every write of its own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from sqlalchemy import make_url

from service.avoidance import MAX_LOSSES
from service.folders import BUNDLES
from service.ports import ClusterLostError, ClusterPort
from service.records import Duty, JobRow, NodeMark
from service.replica import Claim
from service.schedule_spec import parse_schedule_spec
from service.services import Services, build_services
from service.settings import Settings
from service.states import ENDED_STATES, JobState, Verb
from service.store import deleting
from service.store.opening import open_store
from service.store.port import DatabaseAwayError, ReconcilerStore
from service.sweep_records import ENDED_SWEEPS
from service.times import rfc3339
from tests.faults.crash_points import CrashPoint, When, methods_of
from tests.faults.databases import each_method
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.noted import nameless_spec, noted_spec, noted_sweep
from tests.faults.oracle import Case, judge
from tests.faults.processes import RECONCILER, Installation
from tests.service.given import stored_bundle, zip_bytes
from tests.waiting import LIMIT_S
from workers.assignment import JobKey
from workers.control.names import WorkerName, controller_name, parse_name
from workers.storage_urls import open_storage

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

ON_BOTH = ("admit", "transition", "fold")
"""Calls that are tried on PostgreSQL in every run: guarded writes that move jobs."""

STORE, CLUSTER = methods_of(ReconcilerStore), methods_of(ClusterPort)
NEVER_CALLED = {
    "job": "the reconciler reads all live jobs at once",
}
ENDLESS = {"postgresql": "watch_wishes"}
"""Calls that return only when they are cancelled, by the kind of database."""

METHODS = [name for name in (*STORE, *CLUSTER) if name not in NEVER_CALLED]
OFTEN = {
    "fold": 4,
    "direct": 4,
    "transition": 3,
    "observe_sweep": 4,
    "carry_out": 3,
    "ask_search": 3,
}
"""Calls that mean another thing each time: starting, running, ending."""


@dataclass
class Scene:
    """An installation without API processes: the test itself commands, by the same use cases."""

    installation: Installation
    services: Services
    accepted: dict[str, str] = field(default_factory=dict)
    schedules: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    is_tending: bool = False

    async def submit(self, **changes: Any) -> str:
        number = len(self.accepted) + 1
        key = f"key-{number}"
        spec = noted_spec(number) | {"steps": 12, "workers": {"min": 1, "max": 2}} | changes
        self.accepted[key] = (await self.services.jobs.submit(spec, key)).job.id
        return self.accepted[key]

    async def search(self, **changes: Any) -> str:
        """Submit a sweep of short jobs."""
        number = len(self.accepted) + 1
        key = f"key-{number}"
        self.accepted[key] = (await self.services.sweeps.create(noted_sweep(number, **changes), key)).sweep.id
        return self.accepted[key]

    async def has_searched(self, sweep_id: str) -> bool:
        return (await self.services.sweeps.get(sweep_id)).state in ENDED_SWEEPS

    async def has_lost(self, job_id: str) -> bool:
        """Whether it is written down that a worker of this job was lost."""
        return job_id in {loss.job_id for loss in await self.services.store.nodes.losses(since=0.0)}

    async def state(self, job_id: str) -> JobState:
        return (await self.services.jobs.get(job_id)).state

    async def is_in(self, job_id: str, *states: JobState) -> bool:
        return await self.state(job_id) in states

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something holds, or the reconciler is dead and nobody starts it again."""
        deadline_s = time.monotonic() + LIMIT_S
        while not await holds() and (self.is_tending or self.installation.is_alive(RECONCILER)):
            assert time.monotonic() < deadline_s, f"{what} did not come; {self.installation.told()}"
            if self.is_tending:
                self.installation.tend()
            await asyncio.sleep(0.01)

    async def running(self, **changes: Any) -> str:
        """A job that will run for a while, once it runs."""
        job_id = await self.submit(**{"steps": 150, **changes})

        async def runs() -> bool:
            return await self.state(job_id) is JobState.RUNNING

        await self.until("a running job", runs)
        return job_id

    async def struck(self, point: CrashPoint) -> None:
        """Wait until the reconciler has come to a crash point, and is dead where it dies of it."""

        async def is_over() -> bool:
            is_dead = point.error is not None or not self.installation.is_alive(RECONCILER)
            return is_dead and self.installation.has_struck(RECONCILER, point)

        await self.until(f"the crash point {point}", is_over)
        assert await is_over(), f"the reconciler died elsewhere: {self.installation.log(RECONCILER)[-3000:]}"

    async def judged(self) -> None:
        """With a reconciler that is not disturbed everything comes to its end; then the oracle is asked."""
        self.is_tending = True

        async def is_over() -> bool:
            counts = await self.services.jobs.count_by_state()
            is_still = all(state in ENDED_STATES for state, count in counts.items() if count)
            is_decided = not (await self.services.schedules.page(state="ACTIVE")).schedules
            if not is_still or not is_decided or await self.installation.cluster.names():
                return False
            evidence = gather(self.installation.settings)
            is_left = evidence.stray_bundles or evidence.half_deleted or evidence.folders - evidence.jobs.keys()
            return not is_left and all(sweep.is_over for sweep in evidence.sweeps.values())

        await self.until("the end of all jobs, actors, deletions, and bytes of no bundle or job", is_over)
        evidence = gather(self.installation.settings)
        # Of runs that all come to the same none is better, and none is missing.
        assert {state for sweep in evidence.sweeps.values() for state in sweep.promotions} <= {"KEPT"}
        case = Case(
            evidence=evidence,
            notes=read_diary(self.installation.diary),
            saves=read_saves(self.installation.diary),
            accepted=self.accepted,
            deleted=self.deleted,
            remains=await self.installation.cluster.remains(),
        )
        assert_nothing_found(judge(case))
        for schedule_id in self.schedules:
            runs = (await self.services.schedules.runs(schedule_id)).runs
            assert [run.outcome for run in runs] == ["STARTED", "STARTED"]
        events = await self.services.store.nodes.cluster_events(100)
        told = [event.text for event in events if event.node_id is not None]
        assert len(told) == len(set(told)), f"what was decided about nodes is told twice: {told}"


@pytest.fixture
async def scene(settings: Settings) -> AsyncIterator[Scene]:
    quick = settings.model_copy(update={"leader_lease_s": 1.0})
    with Installation(quick, names=("cluster",)) as installation:
        services = build_services(quick)
        yield Scene(installation, services)
        await services.store.close()


async def come_and_go(scene: Scene) -> None:
    await scene.submit()


async def lose_a_controller(scene: Scene) -> None:
    job_id = await scene.running()
    await scene.installation.cluster.kill([controller_name(JobKey(job_id=job_id, attempt=1), 1)])


async def leave_an_orphan(scene: Scene) -> None:
    await scene.submit()
    await scene.installation.cluster.add_stray("worker/job_gone/1/1.1")


async def wait_for_room(scene: Scene) -> None:
    job_id = await scene.submit(resources={"cpus": 64})

    async def is_explained() -> bool:
        return (await scene.services.jobs.get(job_id)).explanation is not None

    await scene.until("an explanation", is_explained)
    await scene.services.jobs.command(job_id, Verb.CANCEL)


async def scale(scene: Scene) -> None:
    job_id = await scene.running(workers={"min": 1, "max": 3})
    await scene.services.jobs.scale(job_id, {"workers": 1})


async def pair(scene: Scene, steps: int = 400, least: int = 1) -> str:
    """A job, once two workers of it have trained: whoever joins has no state before, and cannot be the last."""
    job_id = await scene.running(steps=steps, workers={"min": least, "max": 2})

    async def both() -> bool:
        trained = {note.worker for note in read_diary(scene.installation.diary) if note.job == job_id}
        return len(trained) == 2 == (await scene.services.jobs.get(job_id)).num_current

    await scene.until("two workers", both)
    return job_id


async def workers_of(scene: Scene, job_id: str) -> list[str]:
    """Their names."""
    parsed = {name: parse_name(name) for name in await scene.installation.cluster.names()}
    return [name for name, p in parsed.items() if isinstance(p, WorkerName) and p.key.job_id == job_id]


async def lose_on_the_only_node(scene: Scene) -> None:
    """One job after another loses a worker, as often as it takes to suspect the node; the next one is to go on."""
    for _ in range(MAX_LOSSES):
        # One that may become smaller might let the worker go that is killed, which would be no loss.
        job_id = await pair(scene, steps=100_000, least=2)
        await scene.installation.cluster.kill((await workers_of(scene, job_id))[1:])
        await scene.until("a loss", partial(scene.has_lost, job_id))
        await scene.services.jobs.command(job_id, Verb.CANCEL)
    await scene.submit()


async def lose_on_one_of_two_nodes(scene: Scene) -> None:
    await scene.installation.cluster.have_machines("n", "other")
    await lose_on_the_only_node(scene)


async def leave_a_word(scene: Scene) -> None:
    """On a node that is gone."""
    word = NodeMark(node_id=secrets.token_hex(8), duty=Duty.DRAINED, actor="admin", reason="", since=time.time())
    await scene.services.store.nodes.mark_node(word, f"Node {word.node_id} is drained.")
    await scene.submit()


async def use_a_bundle(scene: Scene) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield zip_bytes({"train.py": ""})

    uploaded = await scene.services.bundles.upload(body())
    await scene.submit(entrypoint="train:build", bundle=uploaded.bundle.id)


async def leave_a_bundle(scene: Scene) -> None:
    """One that nothing names, of long ago, and bytes of an upload whose process died."""
    settings = scene.installation.settings
    storage, key = open_storage(settings.storage_url), f"{BUNDLES}/{secrets.token_hex(8)}.zip"
    await Claim(scene.services.store.leases, settings.storage_url).hold()
    past = open_store(settings.database_url, lambda: time.time() - 2 * settings.bundle_keep_s)
    await stored_bundle(past, secrets.token_hex(32), key)
    await past.bundles.announce(f"{key}.cut.zip")
    await past.close()
    for left in (key, f"{key}.cut.zip", f"{key}.cut.zip.0123abcd.part"):
        storage.write(left, [b"code"])
    await use_a_bundle(scene)


async def leave_half_a_deletion(scene: Scene) -> None:
    """As an API leaves it that died between the note of a deletion and the end of the rows."""
    job_id = await scene.submit(resources={"cpus": 64})
    await begin_to_delete(scene, await scene.services.jobs.command(job_id, Verb.CANCEL))


async def begin_to_delete(scene: Scene, job: JobRow) -> None:
    await scene.services.store.database.write(partial(deleting._begin, job=job))
    scene.deleted.add(job.id)


async def start_from_another(scene: Scene) -> None:
    job_id = await scene.submit()

    async def has_ended() -> bool:
        return await scene.state(job_id) is JobState.SUCCEEDED

    await scene.until("a job to start from", has_ended)
    await scene.submit(init_from={"job": job_id, "step": "latest"})


async def leave_in_order(scene: Scene) -> None:
    await scene.running()
    scene.installation.terminate(RECONCILER)


async def come_due(scene: Scene) -> None:
    """A schedule whose two times have just passed, and no more of them come."""
    before_s, now_s = time.time() - 120, time.time()
    job = {**noted_spec(1), "steps": 12}
    document = {
        "name": f"due-{now_s * 1000:.0f}",
        "cron": "* * * * *",
        "time_zone": "UTC",
        "target": {"job": job},
        "overlap": "allow",
        "end": rfc3339(now_s),
    }
    past = open_store(scene.installation.settings.database_url, lambda: before_s)
    schedule = (await past.schedules.create(*parse_schedule_spec(document, before_s))).schedule
    await past.close()
    scene.schedules.append(schedule.id)


async def search(scene: Scene) -> None:
    await scene.search()


async def search_on(scene: Scene) -> None:
    """A sweep that begins with what another has found."""
    earlier = await scene.search(trials=2)
    await scene.until("the earlier sweep", partial(scene.has_searched, earlier))
    await scene.search(trials=2, sampler="tpe", warm_start=[earlier])


async def promote(scene: Scene) -> None:
    """A sweep whose second trial is held against a configuration, the first being it; all runs come to the same."""
    name = f"held-{len(scene.accepted) + 1}"
    await scene.services.configurations.put(name, nameless_spec(1))
    await scene.search(trials=2, parallel=4, promote=name)


STIRS: Mapping[str, Callable[[Scene], Awaitable[None]]] = {
    "observe_sweep": search,
    "sweep_view": search,
    "new_sweep_term": search,
    "carry_out": search,
    "ask_search": search,
    "end_pools": search,
    "end_search": search,
    "beginning": search_on,
    "promotion_view": promote,
    "begin_promotion": promote,
    "carry_promotion": promote,
    "new_term": lose_a_controller,
    "quarantine": lose_on_one_of_two_nodes,
    "note_on_cluster": lose_on_the_only_node,
    "settle_marks": leave_a_word,
    "kill": leave_an_orphan,
    "set_explanations": wait_for_room,
    "set_desired": scale,
    "bundle": use_a_bundle,
    "forget_bundles": leave_a_bundle,
    "bundle_keys": leave_a_bundle,
    "finish_deletions": leave_half_a_deletion,
    "deleted_jobs": leave_half_a_deletion,
    "checkpoints": start_from_another,
    "release_lease": leave_in_order,
    "close": leave_in_order,
    "fire": come_due,
}


def is_endless_on(settings: Settings, method: str) -> bool:
    return ENDLESS.get(make_url(settings.database_url).get_backend_name()) == method


def test_every_call_of_both_ports_is_a_crash_point() -> None:
    assert set(STORE).isdisjoint(CLUSTER)
    assert set(METHODS) | set(NEVER_CALLED) == {*STORE, *CLUSTER}
    assert set(STIRS) <= set(METHODS)


@each_method(METHODS, *ON_BOTH)
async def test_a_reconciler_that_dies_at_a_call_is_succeeded_and_nothing_is_lost(scene: Scene, method: str) -> None:
    is_endless = is_endless_on(scene.installation.settings, method)
    for nth in range(1, OFTEN.get(method, 1) + 1):
        for when in (When.BEFORE,) if is_endless else When:
            point = CrashPoint(method=method, when=when, nth=nth)
            scene.installation.start(RECONCILER, point)
            await STIRS.get(method, come_and_go)(scene)
            await scene.struck(point)
    await scene.judged()


@each_method(METHODS, *ON_BOTH)
async def test_a_call_that_fails_after_its_effect_is_made_good(scene: Scene, method: str) -> None:
    if is_endless_on(scene.installation.settings, method):
        pytest.skip(f"{method} returns only when it is cancelled")
    error = DatabaseAwayError("planted") if method in STORE else ClusterLostError("planted")
    scene.is_tending = True
    point = CrashPoint(method=method, when=When.AFTER, error=error)
    scene.installation.start(RECONCILER, point)
    await STIRS.get(method, come_and_go)(scene)
    await scene.struck(point)
    await scene.judged()

"""What makes a reconciler come to each of its calls."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

from service.avoidance import MAX_LOSSES
from service.folders import BUNDLES, checkpoints_place
from service.reconciler.reaper import NOTED_S
from service.records import Duty, JobRow, NodeMark
from service.replica import Claim
from service.schedule_spec import parse_schedule_spec
from service.states import JobState, Move, Verb, command
from service.store import deleting
from service.store.opening import open_store
from service.times import rfc3339
from tests.faults.diary import read_diary
from tests.faults.noted import nameless_spec, noted_spec
from tests.faults.processes import RECONCILER
from tests.faults.scene import Scene
from tests.service.given import stored_bundle, zip_bytes
from workers.assignment import JobKey
from workers.checkpoints import manifest_key
from workers.control.names import WorkerName, controller_name, parse_name
from workers.spec import parse_job_spec
from workers.storage_urls import open_storage


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


async def leave_an_old_deletion(scene: Scene) -> None:
    """Which is noted longer than it has to be."""
    past = open_store(scene.installation.settings.database_url, lambda: time.time() - 2 * NOTED_S)
    job = (await past.jobs.submit(parse_job_spec(noted_spec(1)))).job
    move = command(Verb.CANCEL, job.state, job.attempt)
    assert isinstance(move, Move)
    await past.jobs.delete(await past.jobs.command(job, move))
    await past.close()
    scene.deleted.add(job.id)
    await scene.submit()


async def thin_out(scene: Scene) -> None:
    """A checkpoint that is listed goes from storage while nobody looks."""
    job_id = await scene.running()
    storage_url = scene.installation.settings.storage_url

    async def is_listed() -> bool:
        return bool(await scene.services.store.reconciler.checkpoints(job_id))

    await scene.until("a checkpoint that is listed", is_listed)
    storage = open_storage(checkpoints_place(storage_url, job_id), root=storage_url)
    for listed in (await scene.services.store.reconciler.checkpoints(job_id))[:1]:  # none where the reconciler died
        storage.delete(manifest_key(listed.path))


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
    "forget_deletions": leave_an_old_deletion,
    "register_checkpoints": thin_out,
    "deleted_jobs": leave_half_a_deletion,
    "checkpoints": start_from_another,
    "release_lease": leave_in_order,
    "close": leave_in_order,
    "fire": come_due,
}

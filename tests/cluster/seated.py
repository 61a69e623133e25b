"""Workers that may have a GPU or CPUs instead, as the queue grants them and a fleet's hands place and start them.

``python -m tests.cluster.seated ADDRESS FOLDER``, on a Ray of which this is a driver. Prints a JSON object:
``granted``, the number of workers; ``workers``, for each ``{has_gpus, phase, failure}``: whether its node counts
any, and what it tells of itself once it is built or has failed; ``left``, how many more the queue would grant then;
``raced``, whether each of as many has a GPU that were placed at once by hands that know nothing of each other;
``returned``, whether one that died as it was made was waited for no longer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import ray

from service.cluster import Cluster
from service.queue import Running, Waiting, admit, offers
from service.room import need_of
from workers.assignment import JobKey, Storage
from workers.control import settling
from workers.control.launch import Launch
from workers.control.names import worker_name
from workers.control.ray_fleet import RayFleet
from workers.control.ray_hands import RayHands
from workers.spec import JobSpec, parse_job_spec
from workers.status import Acknowledged, Phase, WorkerStatus

NAMESPACE = "seated"
KEY = JobKey(job_id="job-seated", attempt=1)
LIMIT_S = 120.0
MOST = 9
RESOURCES = {"cpus": 1, "gpus": 1, "cpus_instead": 1.5}


async def main(address: str, folder: Path) -> dict[str, Any]:
    cluster = Cluster(address, NAMESPACE)
    await cluster.connect()
    spec = parse_job_spec(
        {"name": "seated", "entrypoint": "workers.recipes.digits:build", "steps": 1, "resources": RESOURCES}
    )
    waits = Waiting(job_id="job", need=need_of(spec.resources), min=1, max=MOST)
    nodes = (await cluster.view()).nodes
    [grant] = admit([waits], [], nodes)
    hands = RayHands(NAMESPACE)
    fleet = RayFleet(KEY, 1, hands, launch(spec, folder))
    for number in range(grant.num_workers):
        fleet.start(f"1.{number}", frozenset())
    statuses = await told(fleet, grant.num_workers)
    found = {i: await hands.node_of(await hands.find(worker_name(KEY, i))) for i in statuses}
    sits = Running(
        job_id="job",
        need=waits.need,
        num_workers=grant.num_workers,
        min=1,
        max=MOST,
        num_asked=MOST,
        places=[str(node_id) for node_id in found.values()],
    )
    left = offers([sits], (await cluster.view()).nodes)["job"] - grant.num_workers
    await clear(hands)
    with_gpus = {node.node_id for node in nodes if node.has_gpus}
    workers = [
        {"has_gpus": found[i] in with_gpus, "phase": status.phase, "failure": status.failure and status.failure.message}
        for i, status in statuses.items()
    ]
    raced = [node_id in with_gpus for node_id in await race(launch(spec, folder), grant.num_workers)]
    returned = await dies(launch(spec, folder))
    return {"granted": grant.num_workers, "workers": workers, "left": left, "raced": raced, "returned": returned}


async def race(launch: Launch, count: int) -> list[str | None]:
    """The nodes of workers of as many jobs, of which none waits for room that another took."""
    settling.NUM_LOOKS = 2**31

    async def placed(number: int) -> str | None:
        hands, name = RayHands(NAMESPACE), worker_name(JobKey(job_id=f"job-{number}", attempt=1), "1.0")
        make = partial(hands.create, launch, name, frozenset(), must_fit=False)
        return await hands.node_of(await settling.settle(hands, name, make, lambda: False))

    async with asyncio.timeout(LIMIT_S):
        found = await asyncio.gather(*(placed(number) for number in range(count)))
    await clear(RayHands(NAMESPACE))
    return found


async def dies(launch: Launch) -> bool:
    """Whether a worker that is killed as it is made is given back dead, and not waited for."""
    hands, name = RayHands(NAMESPACE), worker_name(JobKey(job_id="job-dead", attempt=1), "1.0")

    async def make() -> Any:
        actor = await hands.create(launch, name, frozenset(), must_fit=False)
        if actor is not None:
            await asyncio.to_thread(ray.kill, actor)
        return actor

    async with asyncio.timeout(LIMIT_S):
        return await hands.node_of(await settling.settle(hands, name, make, lambda: False)) is None


async def clear(hands: RayHands) -> None:
    """End all workers."""
    for name in await hands.names():
        await hands.kill(await hands.find(name))


def launch(spec: JobSpec, folder: Path) -> Launch:
    return Launch(
        spec=spec,
        storage=Storage(checkpoints=str(folder / "checkpoints"), output=str(folder / "output")),
        scratch=str(folder / "scratch"),
    )


async def told(fleet: RayFleet, count: int) -> dict[str, WorkerStatus]:
    """What each of so many workers is once it stands ready, or has failed."""
    found: dict[str, WorkerStatus] = {}
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            for worker_id in fleet.worker_ids:
                if fleet.can_poll(worker_id):
                    fleet.poll(worker_id, None, Acknowledged(), wants_records=False)
            await fleet.news.wait()
            fleet.news.clear()
            heard = fleet.heard()
            assert not heard.lost, heard.lost
            found |= {i: status for i, status in heard.statuses.items() if status.phase in (Phase.READY, Phase.FAILED)}
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
    ray.shutdown()

"""What a real Ray still holds of one installation, asked of its head: ``python -m tests.faults.ray_remains``.

A process of its own, so that any test can ask: what Ray needs of the environment is set before Ray is imported. It
becomes no driver, so it leaves nothing there itself.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from service.settings import environment
from service.supervise.processes import belonging_to
from tests.faults.remains import Remains
from workers.control.names import parse_spare

ROOT = Path(__file__).resolve().parents[2]
ASK_S = 60.0
KV_S = 5.0
TITLES = ("ray::TrainWorker", "ray::JobController")


def ray_remains(address: str, namespace: str, folder: Path, variables: Mapping[str, str]) -> Remains:
    """What is there now. All nodes' files lie in ``folder`` on this machine; ``variables`` are what drivers set."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.ray_remains", address, namespace, str(folder)],
        cwd=ROOT,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Remains(**json.loads(done.stdout.splitlines()[-1]))


def asked(address: str, namespace: str, folder: Path) -> Remains:
    """The same, in a process where Ray's environment is set."""
    # Only now, as Ray reads its environment when it is imported.
    from ray._raylet import GcsClient, GcsClientOptions, GlobalStateAccessor  # type: ignore[attr-defined]  # of Cython
    from ray.core.generated.gcs_pb2 import (  # type: ignore[attr-defined]  # made by protoc
        ActorTableData,
        PlacementGroupTableData,
    )

    processes = titled(folder)  # before the actors, so that whoever comes meanwhile is no stray
    options = GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True)
    accessor = GlobalStateAccessor(options)
    assert accessor.connect(), f"Ray at {address} does not answer"
    groups = [PlacementGroupTableData.FromString(data) for data in accessor.get_placement_group_table()]
    # After the groups, so that each group's maker is among them.
    actors = [ActorTableData.FromString(data) for data in accessor.get_actor_table(None, None)]
    client, space = GcsClient(address=address), namespace.encode()
    keys = client.internal_kv_keys(b"spare/", space, KV_S)
    given = {key.decode(): client.internal_kv_get(key, space, KV_S).decode() for key in keys}
    alive = [actor for actor in actors if actor.state != ActorTableData.DEAD]
    held = [group for group in groups if group.state != PlacementGroupTableData.REMOVED]
    strays = sorted(set(processes) - {actor.pid for actor in alive})
    return _remains(
        ours={actor.actor_id: actor.name for actor in alive if actor.ray_namespace == namespace and actor.name},
        strangers={actor.actor_id for actor in actors if actor.ray_namespace != namespace},
        made={group.placement_group_id.hex(): group.creator_actor_id for group in held},
        given=given,
        processes=[processes[pid] for pid in strays],
    )


def _remains(
    *, ours: Mapping[Any, str], strangers: set[Any], made: Mapping[str, Any], given: Mapping[str, str], processes: Any
) -> Remains:
    """Names that spares were ``given`` are put in place of their own; what ``strangers`` made is theirs."""
    known_as = {actor_id: given.get(name, name) for actor_id, name in ours.items()}
    waiting = [name for name in ours.values() if parse_spare(name) is not None and name not in given]
    return Remains(
        names=sorted(set(known_as.values()) - set(waiting)),
        spares=sorted(waiting),
        groups={group: known_as.get(maker, "") for group, maker in made.items() if maker not in strangers},
        processes=processes,
        notes=sorted(given.keys() - set(ours.values())),
    )


def titled(folder: Path) -> Mapping[int, str]:
    """Workers and controllers by the title that Ray gives them, which hides whose they are: a raylet's children."""
    found = {}
    for process in [child for owner in belonging_to(folder) if _name(owner) == "raylet" for child in owner.children()]:
        title = _title(process)
        if title.startswith(TITLES):
            found[process.pid] = f"{process.pid} {title}"
    return found


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()
    return ""


if __name__ == "__main__":
    print(json.dumps(asdict(asked(sys.argv[1], sys.argv[2], Path(sys.argv[3])))))

"""What a real Ray still holds of one installation, asked of its head.

By a process of its own, so that any test can ask: what Ray needs of the environment is set before Ray is imported. It
becomes no driver, so it leaves nothing there itself. It stays for the next question, as importing Ray is most of one.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
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
OURS = re.compile(r"ray::((\S+:)?(TrainWorker|JobController|SweepController)|isfile)\b")
"""The title of an actor begins with its name while it is constructed; ``isfile`` is the one task of ours."""


class _Asker:
    """One process that asks, and has imported Ray in ``variables``; it ends with this one."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = dict(variables)
        self._ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.ray_remains", str(theirs.fileno())],
                cwd=ROOT,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def remains(self, address: str, namespace: str, folder: Path) -> Remains:
        """Raises AssertionError with what went wrong there."""
        try:
            self._ours.send((address, namespace, folder))
            assert self._ours.poll(ASK_S), f"nothing was told of Ray at {address} within {ASK_S:.0f} s"
            told = self._ours.recv()
        except (EOFError, OSError) as error:
            raise AssertionError(f"whoever asked Ray at {address} has died: {error!r}") from None
        assert isinstance(told, Remains), told
        return told

    def end(self) -> None:
        self._ours.close()
        self._process.kill()
        self._process.wait()


_kept: list[_Asker] = []
"""At most one: tests that share a Ray follow one another."""


def ray_remains(address: str, namespace: str, folder: Path, variables: Mapping[str, str]) -> Remains:
    """What is there now. All nodes' files lie in ``folder`` on this machine; ``variables`` are what drivers set."""
    wanted = {**environment(), **variables}
    # Pytest writes there which test runs.
    wanted.pop("PYTEST_CURRENT_TEST", None)
    if not _kept or _kept[0].variables != wanted:
        _forget()
        _kept.append(_Asker(wanted))
    try:
        return _kept[0].remains(address, namespace, folder)
    except AssertionError:
        _forget()
        raise


def _forget() -> None:
    """End the process that asks, where there is one."""
    while _kept:
        _kept.pop().end()


def _answer(asking: Connection) -> None:
    """Until the other end is closed."""
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            question = asking.recv()
            try:
                asking.send(asked(*question))
            except Exception:
                asking.send(traceback.format_exc())


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
    # A name that is dropped between the two calls is left out of the second's answer.
    found = client.internal_kv_multi_get(keys, space, KV_S) if keys else {}
    given = {key.decode(): name.decode() for key, name in found.items()}
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
    """What is ours by the title that Ray gives it, which hides whose it is: a raylet's children."""
    found = {}
    for process in [child for owner in belonging_to(folder) if _name(owner) == "raylet" for child in owner.children()]:
        title = _title(process)
        if OURS.match(title):
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
    _answer(Connection(int(sys.argv[1])))

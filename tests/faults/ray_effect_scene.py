"""What brings about the effects on a real Ray between which a reconciler dies within one blocking call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import ray
from ray._private.state import actors
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from tests.faults.ray_effect_paths import NOTES, POINTS, POOL, SPARES, SUPERFLUOUS
from tests.faults.ray_paths import JOB
from tests.faults.ray_scene import Scene
from workers.control.actor import TrainWorker, train_worker_actor
from workers.control.names import NODE_ID_LABEL, SpareName, parse_pool, pool_name, spare_name

GONE = "f" * 56
"""The id of a node that is not there."""

READY_S = 60.0
KV_S = 5.0

_client: Callable[[], Any] = internal_kv_get_gcs_client


class EffectScene(Scene):
    """Each stir gives the blocking call two things to do at least: where it dies after the first, one is left."""

    points: ClassVar[Sequence[tuple[str, str]]] = POINTS
    is_patient: ClassVar[bool] = True  # else the reaper might come before the call does

    def struck(self, number: int) -> Callable[[], bool]:
        is_over = super().struck(number)
        assert not is_over(), f"{self.points[number]}: nothing was left to do when it died"
        return is_over

    def _stirs(self) -> Mapping[str, Callable[[str], Callable[[], bool]]]:
        return {SPARES: self._spares, POOL: self._pool, SUPERFLUOUS: self._superfluous, NOTES: self._notes}

    def _spares(self, key: str) -> Callable[[], bool]:
        """A job, and as many spares as are wanted of which each has a process."""
        has_ended = self._job(f"{JOB}-{key}")
        return lambda: has_ended() and self._num_ready() >= self.installation.settings.spares_per_node

    def _num_ready(self) -> int:
        """0 where there is one that has no process."""
        spares = self._roster.spares()
        try:
            states = [actors(self._roster.spare(spare)._actor_id.hex()).get("State") for spare in spares]
        except ValueError:  # one ended just now
            return 0
        return len(states) if set(states) == {"ALIVE"} else 0

    def _pool(self, key: str) -> Callable[[], bool]:
        """A sweep, and processes that wait for trials of it which never come."""
        has_ended, made = self._sweep(key), self.accepted[key]
        for spare in self._begun(key):
            ray.get(self._roster.spare(spare).__ray_call__.remote(_wait_in_pool), timeout=READY_S)
            self._roster.take(spare, pool_name(f"{made}/of-no-trial"))
        return lambda: has_ended() and made not in {parse_pool(name) for name in self._roster.names()}

    def _superfluous(self, key: str) -> Callable[[], bool]:
        """Spares of a node on which none are wanted."""
        spares = self._begun(key)
        return lambda: self._roster.taken().keys().isdisjoint(spares)

    def _begun(self, key: str) -> list[SpareName]:
        """Two processes that can be called, on this node though their names say another one."""
        namespace, here = self._roster.namespace, ray.get_runtime_context().get_node_id()
        spares = [SpareName(node_id=GONE, tag=f"{key}-{number}") for number in range(2)]
        for spare in spares:
            options = {
                "name": spare_name(spare.node_id, spare.tag),
                "namespace": namespace,
                "lifetime": "detached",
                "num_cpus": 0,
                "label_selector": {NODE_ID_LABEL: here},
            }
            actor = train_worker_actor().options(**options).remote(namespace)
            ray.get(actor.renew.remote(), timeout=READY_S)
        return spares

    def _notes(self, key: str) -> Callable[[], bool]:
        """Notes of spares that are gone, and of controllers whose host is."""
        spares = [SpareName(node_id=GONE, tag=f"{key}-{number}") for number in range(2)]
        hosted = [f"controller/{key}/1/{number}" for number in range(2)]
        for spare, name in zip(spares, hosted, strict=True):
            self._roster.take(spare, "worker/gone/1/1.0")
            self._roster.host(name, "sweep/gone/1")
        noted = {spare_name(spare.node_id, spare.tag) for spare in spares} | {f"hosted/{name}" for name in hosted}
        return lambda: noted.isdisjoint(self._noted())

    def _noted(self) -> set[str]:
        space = self._roster.namespace.encode()
        keys = (key for prefix in (b"spare/", b"hosted/") for key in _client().internal_kv_keys(prefix, space, KV_S))
        return {key.decode() for key in keys}


def _wait_in_pool(worker: TrainWorker) -> None:
    """As at the end of a trial. Its lease is left long: it is not to end before its sweep does on a slow machine."""
    worker._is_waiting = True

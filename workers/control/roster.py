"""An installation's living actors in Ray by name; a spare that was taken answers to its worker's name. Blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from workers.control.hosted import Hosted
from workers.control.names import (
    SpareName,
    parse_pool,
    parse_spare,
    parse_sweep,
    pool_name,
    spare_name,
    sweep_name,
)

KV_S = 5.0
_HOSTED = b"hosted/"
_client: Callable[[], Any] = internal_kv_get_gcs_client


class Roster:
    """The names of one ``namespace``. Needs this process to be connected to Ray; raises RayError when that is lost.

    Ray renames no actor. Who takes a spare notes its new name at Ray's head, where only the first one may.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._space = namespace.encode()

    def names(self) -> list[str]:
        """Names of all that work or control. A spare is not among them before it was taken."""
        listed = self._listed()
        taken = self._taken(listed)
        own = [taken.get(name, name) for name in listed if name in taken or parse_spare(name) is None]
        return [*own, *self._hosted(listed)]

    def spares(self) -> list[SpareName]:
        """The spares that nobody has taken; some may not be ready yet."""
        listed = self._listed()
        taken = self._taken(listed)
        return [spare for name in listed if name not in taken and (spare := parse_spare(name)) is not None]

    def find(self, name: str) -> Any:
        """The actor of a name, ``Hosted`` where it lives in another's. Raises ValueError where there is none."""
        try:
            return ray.get_actor(name, self.namespace)
        except ValueError:
            listed = self._listed()
            for spare, taken_as in self._taken(listed).items():
                if taken_as == name:
                    return ray.get_actor(spare, self.namespace)
            if (host := self._hosted(listed).get(name)) is not None:
                return Hosted(ray.get_actor(host, self.namespace), name)
            raise

    def spare(self, spare: SpareName) -> Any:
        """A spare's actor, taken or not. Raises ValueError where it is gone."""
        return ray.get_actor(spare_name(spare.node_id, spare.tag), self.namespace)

    def pooled(self, pool: str) -> list[SpareName]:
        """The processes that wait in a pool."""
        wanted = pool_name(pool)
        taken = self._taken(self._listed())
        return [spare for name, now in taken.items() if now == wanted and (spare := parse_spare(name)) is not None]

    def taken(self) -> Mapping[SpareName, str]:
        """What each process that is or was a spare was taken by; empty where nobody has."""
        listed = self._listed()
        taken = self._taken(listed)
        return {spare: taken.get(name, "") for name in listed if (spare := parse_spare(name)) is not None}

    def end_pools(self, sweep_id: str) -> None:
        """End all that wait for further trials of a sweep; who is called up at this moment goes on as a worker."""
        for name, now in self._taken(self._listed()).items():
            spare = parse_spare(name)
            if parse_pool(now) == sweep_id and spare is not None:
                with contextlib.suppress(ValueError):
                    self.spare(spare).dismiss.remote()

    def rename(self, spare: SpareName, name: str) -> None:
        """Give a process another name than it was taken by; for that process itself to call."""
        _client().internal_kv_put(_key(spare), name.encode(), True, self._space, KV_S)

    def take(self, spare: SpareName, name: str) -> bool:
        """Give a spare its name, for good; False where somebody was faster."""
        return bool(_client().internal_kv_put(_key(spare), name.encode(), False, self._space, KV_S))

    def give_back(self, spare: SpareName) -> None:
        """Take the name from a spare that is not used after all, or that is gone."""
        _client().internal_kv_del(_key(spare), False, self._space, KV_S)

    def host_of(self, sweep_id: str) -> str | None:
        """The name of the controller of a sweep that is in office and lives, in which those of its trials may."""
        found = [sweep for name in self._listed() if (sweep := parse_sweep(name)) and sweep.sweep_id == sweep_id]
        return sweep_name(sweep_id, max(sweep.term for sweep in found)) if found else None

    def host(self, name: str, host: str) -> None:
        """Tell that the controller ``name`` lives in the process of the actor ``host``; for that process to call."""
        _client().internal_kv_put(_HOSTED + name.encode(), host.encode(), True, self._space, KV_S)

    def unhost(self, name: str) -> None:
        """Tell that a controller is gone from the process that it was in."""
        _client().internal_kv_del(_HOSTED + name.encode(), False, self._space, KV_S)

    def forget_hosted(self, host: str) -> None:
        """Tell that no controller lives in the process of the actor ``host``; for that process to call."""
        for name in [name for name, found in self._noted_hosts().items() if found == host]:
            self.unhost(name)

    def forget_dead(self) -> None:
        """Drop the names of spares that are gone, and of controllers whose host is."""
        hosted = self._noted_hosts()
        noted = _client().internal_kv_keys(b"spare/", self._space, KV_S)
        listed = set(self._listed())  # after the notes, so that whoever is not there has died
        for key in noted:
            if key.decode() not in listed and (spare := parse_spare(key.decode())) is not None:
                self.give_back(spare)
        for name in [name for name, host in hosted.items() if host not in listed]:
            self.unhost(name)

    def _listed(self) -> list[str]:
        listed = ray.util.list_named_actors(all_namespaces=True)
        return [entry["name"] for entry in listed if entry["namespace"] == self.namespace]

    def _hosted(self, listed: list[str]) -> Mapping[str, str]:
        """The living controllers that are no actors of their own, with their hosts."""
        if not any(parse_sweep(name) for name in listed):
            return {}
        return {name: host for name, host in self._noted_hosts().items() if host in listed}

    def _noted_hosts(self) -> Mapping[str, str]:
        keys = _client().internal_kv_keys(_HOSTED, self._space, KV_S)
        found = _client().internal_kv_multi_get(keys, self._space, KV_S) if keys else {}
        return {key.removeprefix(_HOSTED).decode(): host.decode() for key, host in found.items()}

    def _taken(self, listed: list[str]) -> Mapping[str, str]:
        """The names that spares were given, by the names that Ray knows."""
        keys = [name.encode() for name in listed if parse_spare(name) is not None]
        if not keys:
            return {}
        found = _client().internal_kv_multi_get(keys, self._space, KV_S)
        return {key.decode(): name.decode() for key, name in found.items()}


def _key(spare: SpareName) -> bytes:
    return spare_name(spare.node_id, spare.tag).encode()

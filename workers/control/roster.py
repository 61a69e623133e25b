"""An installation's living actors in Ray by name; a spare that was taken answers to its worker's name. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from workers.control.names import SpareName, parse_spare, spare_name

KV_S = 5.0
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
        return [taken.get(name, name) for name in listed if name in taken or parse_spare(name) is None]

    def spares(self) -> list[SpareName]:
        """The spares that nobody has taken; some may not be ready yet."""
        listed = self._listed()
        taken = self._taken(listed)
        return [spare for name in listed if name not in taken and (spare := parse_spare(name)) is not None]

    def find(self, name: str) -> Any:
        """The actor of a name. Raises ValueError where there is none."""
        try:
            return ray.get_actor(name, self.namespace)
        except ValueError:
            for spare, taken_as in self._taken(self._listed()).items():
                if taken_as == name:
                    return ray.get_actor(spare, self.namespace)
            raise

    def spare(self, spare: SpareName) -> Any:
        """A spare's actor, taken or not. Raises ValueError where it is gone."""
        return ray.get_actor(spare_name(spare.node_id, spare.tag), self.namespace)

    def take(self, spare: SpareName, name: str) -> bool:
        """Give a spare its name, for good; False where somebody was faster."""
        return bool(_client().internal_kv_put(_key(spare), name.encode(), False, self._space, KV_S))

    def give_back(self, spare: SpareName) -> None:
        """Take the name from a spare that is not used after all, or that is gone."""
        _client().internal_kv_del(_key(spare), False, self._space, KV_S)

    def forget_dead(self) -> None:
        """Drop the names of spares that are gone."""
        noted = _client().internal_kv_keys(b"spare/", self._space, KV_S)
        listed = set(self._listed())  # after the notes, so that whoever is not there has died
        for key in noted:
            if key.decode() not in listed and (spare := parse_spare(key.decode())) is not None:
                self.give_back(spare)

    def _listed(self) -> list[str]:
        listed = ray.util.list_named_actors(all_namespaces=True)
        return [entry["name"] for entry in listed if entry["namespace"] == self.namespace]

    def _taken(self, listed: list[str]) -> Mapping[str, str]:
        """The names that spares were given, by the names that Ray knows."""
        keys = [name.encode() for name in listed if parse_spare(name) is not None]
        if not keys:
            return {}
        found = _client().internal_kv_multi_get(keys, self._space, KV_S)
        return {key.decode(): name.decode() for key, name in found.items()}


def _key(spare: SpareName) -> bytes:
    return spare_name(spare.node_id, spare.tag).encode()

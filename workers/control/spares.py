"""Keeping processes ready that have loaded torch, so that a worker's start costs neither a process nor its imports."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Mapping

import ray

from workers.control.actor import train_worker_actor
from workers.control.names import NODE_ID_LABEL, SpareName, parse_pool, spare_name
from workers.control.roster import Roster

START_EVERY_S = 5.0
"""A node's next spare is not begun sooner: one that dies at once would be started for ever."""

RENEW_S = 60.0

_ENDED = "ended"
"""A name that no job has, so that nobody takes it while it ends."""


class Spares:
    """The spares of one installation. One process keeps them at a time; it blocks as ``Roster`` does."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._started_s: dict[str, float] = {}
        self._lacking: frozenset[str] = frozenset()
        self._renewed_s = float("-inf")

    def keep(self, wanted: Mapping[str, int]) -> None:
        """Have at least so many on each of these nodes, by id; on all other nodes they end.

        What waits in a pool counts: between two trials there is room for a moment, and no need of another process.
        """
        taken = self._roster.taken()
        spares = [spare for spare, name in taken.items() if not name]
        for spare, name in taken.items():
            # Who died before it had ended one that it had taken left it so.
            is_superfluous = not name and spare.node_id not in wanted
            if name == _ENDED or (is_superfluous and self._roster.take(spare, _ENDED)):
                self._kill(spare)
        there = Counter(spare.node_id for spare, name in taken.items() if not name or parse_pool(name))
        lacking = frozenset(node_id for node_id, number in wanted.items() if there[node_id] < number)
        # Room that is there for a moment is somebody's who has no process yet.
        for node_id in (node_id for node_id in lacking if node_id in self._lacking or node_id not in self._started_s):
            self._start(node_id)
        self._lacking = lacking
        if time.monotonic() - self._renewed_s >= RENEW_S:
            self._renewed_s = time.monotonic()
            self._renew(spares)

    def _start(self, node_id: str) -> None:
        now_s = time.monotonic()
        if now_s - self._started_s.get(node_id, float("-inf")) < START_EVERY_S:
            return
        self._started_s[node_id] = now_s
        begin_spare(self._roster.namespace, node_id, is_ready=True)

    def _renew(self, spares: list[SpareName]) -> None:
        self._roster.forget_dead()
        for spare in spares:
            with contextlib.suppress(ValueError):
                self._roster.spare(spare).renew.remote()

    def _kill(self, spare: SpareName) -> None:
        with contextlib.suppress(ValueError):
            ray.kill(self._roster.spare(spare))


def begin_spare(namespace: str, node_id: str, *, is_ready: bool) -> SpareName:
    """Begin a spare on that node, which can be taken at once; one that ``is_ready`` loads torch before it answers."""
    spare = SpareName(node_id=node_id, tag=secrets.token_hex(4))
    options = {
        "name": spare_name(spare.node_id, spare.tag),
        "namespace": namespace,
        "lifetime": "detached",
        "num_cpus": 0,
        "label_selector": {NODE_ID_LABEL: node_id},
    }
    train_worker_actor().options(**options).remote(namespace, is_ready=is_ready)
    return spare

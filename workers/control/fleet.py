"""The workers of one attempt as their controller reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from workers.control.actor import Tail
from workers.plan import Plan, PlanId
from workers.status import Acknowledged, WorkerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What happened since it was asked last. ``is_superseded``: a higher term is in office.

    ``rested`` are the workers that have come as far as they may, so that it pays to ask them now.
    ``refusing`` are the workers whose last call found no connection: their process or node may be gone.
    ``nodes`` are those of adopted workers, as far as they were found: of others it is their answers that tell.
    ``head_seen_s`` is when Ray's head was asked the newest question that it answered in time (``time.monotonic``),
    ``was_cut_off`` whether it answered one late; ``nodes_seen_s`` is when each node that was asked last answered.
    """

    statuses: Mapping[str, WorkerStatus] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    rested: frozenset[str] = frozenset()
    refusing: frozenset[str] = frozenset()
    nodes: Mapping[str, str] = field(default_factory=dict)
    head_seen_s: float | None = None
    was_cut_off: bool = False
    nodes_seen_s: Mapping[str, float] = field(default_factory=dict)
    is_superseded: bool = False


class Fleet(Protocol):
    """All methods are for one event loop and return at once, unless they are awaited."""

    @property
    def news(self) -> asyncio.Event:
        """Set when something arrived that the controller should look at now."""
        ...

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """Workers started or adopted that are not known to be gone."""
        ...

    async def adopt(self) -> tuple[str, ...]:
        """Find this attempt's workers by name and watch over them."""
        ...

    def heard(self) -> Heard:
        """Take what arrived since the last call."""
        ...

    def start(self, worker_id: str, avoids: frozenset[str], *, must_fit: bool = False) -> None:
        """Begin to place and start a worker, on none of these nodes; it answers polls once it has a place.

        One that ``must_fit`` is lost at once where no node has room for it as it stands.
        """
        ...

    def can_poll(self, worker_id: str) -> bool:
        """Whether the worker is up and its last poll has been answered or given up."""
        ...

    def poll(self, worker_id: str, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> None:
        """Ask a worker that ``can_poll`` for its status."""
        ...

    def halt(self, worker_id: str, plan_id: PlanId) -> None:
        """Tell a worker to leave the group of any plan up to this; nothing happens while such a call is in flight."""
        ...

    def stop(self, worker_id: str, save: bool) -> None:
        """Tell a worker to end in order, or take back one that has no place yet."""
        ...

    def kill(self, worker_id: str) -> None:
        """End a worker's process, unless a higher term is in office."""
        ...

    def ask_head(self) -> None:
        """Ask Ray's head which terms there are; nothing happens while a question is in flight."""
        ...

    def ask_node(self, node_id: str) -> None:
        """Find out whether a node answers; nothing happens while such a question is in flight."""
        ...

    async def tail(self, worker_id: str, offset: int) -> Tail | None:
        """The rest of a lost worker's log from its node, or None when nobody there can read it."""
        ...

    def abandon(self) -> None:
        """Begin nothing more, and give up what was begun."""
        ...

    def leave(self) -> None:
        """End this process at once: a higher term is in office."""
        ...

    async def bundle(self) -> list[Any]:
        """A list of one reference to the bundle's bytes, which this process owns; empty without a bundle."""
        ...

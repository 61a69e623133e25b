"""Every single thing that a controller's fleet does on Ray; it may die before and after each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from workers.assignment import Assignment
from workers.control.actor import Tail
from workers.control.launch import Launch
from workers.control.names import SpareName
from workers.plan import Plan, PlanId
from workers.status import Acknowledged, WorkerStatus


@dataclass(frozen=True, slots=True)
class To:
    """For whom a call is, by its name, and the caller's term: an actor may be another worker by now."""

    name: str
    term: int


class Hands(Protocol):
    """Calls of one event loop. An actor is whatever ``find``, ``spare`` or ``create`` gave.

    All raise RayError. What is said to a worker bears its name and the caller's term, and raises RayTaskError of
    StaleTermError where a higher one was heard, of ReturnedError where that worker has ended and its process serves
    another or waits for one; ActorUnavailableError where nobody can be reached, another RayActorError where it
    is gone.
    """

    async def names(self) -> list[str]:
        """See ``Roster.names``."""
        ...

    async def find(self, name: str) -> Any:
        """The actor of a name. Raises ValueError where there is none."""
        ...

    async def node_of(self, actor: Any) -> str | None:
        """The node where an actor lives; None where it waits for its place, still begins, or is gone."""
        ...

    async def nearest(self, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        """Spares to try, on nodes with that much room as far as is known, and on none of those to avoid."""
        ...

    async def another(self, room: Mapping[str, float], avoids: frozenset[str]) -> SpareName | None:
        """A spare that is begun now, with nothing loaded, on a node as of ``nearest``; None where there is none."""
        ...

    async def take(self, spare: SpareName, name: str) -> bool:
        """See ``Roster.take``."""
        ...

    async def spare(self, spare: SpareName) -> Any:
        """A spare's actor. Raises ValueError where it is gone."""
        ...

    async def seat(self, actor: Any, room: Mapping[str, float]) -> bool:
        """Let a spare reserve what it needs as a worker; False where its node does not have it."""
        ...

    async def waiting(self, pool: str, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        """Processes that wait in a pool, on nodes as of ``nearest``."""
        ...

    async def call_up(self, actor: Any, room: Mapping[str, float], name: str) -> bool:
        """Let a process out of its pool become a worker; False where another was faster, or its node has no room."""
        ...

    async def give_back(self, spare: SpareName) -> None:
        """See ``Roster.give_back``."""
        ...

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> Any:
        """A new actor on none of the nodes to avoid; it may still wait for its place.

        None where it may have a GPU or CPUs instead and there is room for neither, so that nobody knows for which to
        wait. Raises ValueError where it ``must_fit`` and no node has room for it right now, as far as is known.
        """
        ...

    async def start(self, actor: Any, assignment: Assignment, to: To, bundle: list[Any]) -> None:
        """Tell an actor what to train; returns once it has its place and has begun."""
        ...

    async def poll(
        self, actor: Any, to: To, plan: Plan | None, acked: Acknowledged, wants_records: bool
    ) -> WorkerStatus:
        """Hand over a plan, renew the lease, and hear how it is."""
        ...

    async def halt(self, actor: Any, to: To, plan_id: PlanId) -> None:
        """Let a worker leave the group of any plan up to this."""
        ...

    async def stop(self, actor: Any, to: To, save: bool) -> None:
        """Let a worker end in order."""
        ...

    async def watch(self, actor: Any, to: To, num_rests: int) -> int | None:
        """Wait until a worker has come to rest more often than that, and hear how often; None after a higher term.

        Its end shows as an error, also where its process stays.
        """
        ...

    async def tail(self, actor: Any, to: To, path: str, offset: int) -> Tail | None:
        """What a lost worker left in its log on that actor's node."""
        ...

    async def ask_node(self, node_id: str) -> None:
        """Return once something on that node other than a worker answers, for which a process may have to be started.

        At once for this process's own node: no network is between, and were it frozen so would we be.
        """
        ...

    async def has_lost(self, actor: Any) -> bool:
        """Whether a new actor is dead, or others took what it waits for: nothing is left, and Ray tells who lacks it.

        Also where another waits for just the same while this one begins. Of one that ``create`` did not make only
        whether it is dead.
        """
        ...

    async def give_up(self, actor: Any) -> None:
        """Kill an actor that got no place.

        Where it chose between a GPU and CPUs instead, the next of its name tries the other first.
        """
        ...

    async def kill(self, actor: Any) -> None:
        """End an actor's process, whatever it does."""
        ...

    async def put(self, url: str) -> Any:
        """A reference to an archive's bytes, which lives as long as this process."""
        ...

    def leave(self) -> None:
        """End this process at once."""
        ...

"""What the reconciler needs of a cluster; tests put a small real one in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from service.records import ClusterView
from tuning.orders import Answer, Question
from workers.assignment import JobKey
from workers.control.launch import Launch
from workers.status import Acknowledged, Direction, JobSnapshot


class ClusterError(Exception):
    """Root of what a cluster raises on its own account."""


class ClusterLostError(ClusterError):
    """Ray does not answer (any more); leave this process's driver and connect anew."""


class ClusterAwayError(ClusterError):
    """Ray cannot be joined now. No driver was made, so it can be tried again in this process."""


class ControllerLostError(ClusterError):
    """There is no such controller: it died, or never was."""


class ControllerSilentError(ClusterError):
    """The controller did not answer in time; it may live and answer later."""


class ControllerFaultError(ClusterError):
    """The controller's own code failed in a call; asking again would fail again."""


class ClusterPort(Protocol):
    """Every call has a bound, and raises ClusterLostError when Ray itself does not answer within it."""

    async def connect(self) -> None:
        """Become a driver of the cluster. Raises ClusterAwayError too."""
        ...

    async def close(self) -> None:
        """Leave the cluster; what is detached stays."""
        ...

    async def is_reachable(self) -> bool:
        """Whether the head speaks to whoever connects; cheap, and safe when it does not."""
        ...

    def has_node(self) -> bool:
        """Whether the node lives that this driver has joined; a driver is not told of its end."""
        ...

    async def names(self) -> list[str]:
        """Names of all living actors of this installation; see ``workers.control.names``."""
        ...

    async def start_controller(self, key: JobKey, term: int, launch: Launch) -> None:
        """Start the controller of a term, or find it started already, and prepare it."""
        ...

    async def direct(
        self, key: JobKey, term: int, direction: Direction, acked: Acknowledged, bound_s: float, wait_s: float
    ) -> JobSnapshot | None:
        """Direct a controller; None when it was started and never prepared.

        It may wait up to ``wait_s`` with its answer until there is something new to tell.

        Raises ControllerLostError, ControllerSilentError, ControllerFaultError.
        """
        ...

    async def end_controller(self, key: JobKey, term: int) -> None:
        """Let a controller go, and the workers that it still has; nothing happens when it is gone."""
        ...

    async def ask_search(self, sweep_id: str, term: int, question: Question, bound_s: float) -> Answer | None:
        """Ask a sweep's controller, which is started where there is none of that term; None until it was told all.

        Raises ControllerLostError, ControllerSilentError, ControllerFaultError.
        """
        ...

    async def end_search(self, sweep_id: str, term: int) -> bool:
        """Let a sweep's controller go; False while controllers of trials live in it, which it outlasts."""
        ...

    async def end_pools(self, sweep_id: str) -> None:
        """End the processes that wait for further trials of a sweep."""
        ...

    async def kill(self, names: Sequence[str]) -> None:
        """End actors by name, whatever they do; nothing happens to names that are gone."""
        ...

    async def who_sees(self, path: str, node_ids: Sequence[str]) -> frozenset[str]:
        """On which of these nodes there is a file at ``path``; a node that does not answer sees nothing."""
        ...

    async def view(self) -> ClusterView:
        """Nodes and what is free on them, and what an autoscaler is doing."""
        ...

    async def demand(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Ask the autoscaler for room for all of these at once, used or not; stands until the next, empty ends it.

        Amounts are of ``cpus, gpus, memory_bytes``.
        """
        ...

    async def keep_spares(self, wanted: Mapping[str, int]) -> None:
        """Have at least so many processes ready to become workers, by node id; none on other nodes."""
        ...

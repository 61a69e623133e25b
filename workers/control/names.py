"""Names of actors in Ray's namespace, and what they tell."""

from __future__ import annotations

from dataclasses import dataclass

from workers.assignment import JobKey

NODE_ID_LABEL = "ray.io/node-id"
"""Ray gives each node this label."""

_CONTROLLER = "controller"
_WORKER = "worker"
_SPARE = "spare"
_SWEEP = "sweep"
_POOL = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerName:
    """A controller: its attempt and its term in it."""

    key: JobKey
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerName:
    """A worker: its attempt and its id in it."""

    key: JobKey
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareName:
    """A process that is ready to become a worker, on its node; ``tag`` tells it from all others there ever were."""

    node_id: str
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepName:
    """A sweep's controller, by the sweep's id and its term in it."""

    sweep_id: str
    term: int


def controller_name(key: JobKey, term: int) -> str:
    """``controller/<job>/<attempt>/<term>``."""
    return f"{_CONTROLLER}/{key.job_id}/{key.attempt}/{term}"


def worker_name(key: JobKey, worker_id: str) -> str:
    """``worker/<job>/<attempt>/<worker_id>``."""
    return f"{_WORKER}/{key.job_id}/{key.attempt}/{worker_id}"


def spare_name(node_id: str, tag: str) -> str:
    """``spare/<node>/<tag>``."""
    return f"{_SPARE}/{node_id}/{tag}"


def sweep_name(sweep_id: str, term: int) -> str:
    """``sweep/<sweep>/<term>``."""
    return f"{_SWEEP}/{sweep_id}/{term}"


def parse_sweep(name: str) -> SweepName | None:
    """What the name of a sweep's controller says, or None for any other name."""
    parts = name.split("/")
    if len(parts) != 3 or parts[0] != _SWEEP or not parts[2].isdecimal():
        return None
    return SweepName(sweep_id=parts[1], term=int(parts[2]))


def pool_name(pool: str) -> str:
    """``pool/<sweep>/<kit>``: what all processes of a pool are called while they wait in it."""
    return f"{_POOL}/{pool}"


def parse_pool(name: str) -> str | None:
    """The id of the sweep whose trials a waiting process serves, or None for any other name."""
    parts = name.split("/")
    return parts[1] if len(parts) == 3 and parts[0] == _POOL else None


def parse_spare(name: str) -> SpareName | None:
    """What a spare's name says, or None for any other name."""
    parts = name.split("/")
    if len(parts) != 3 or parts[0] != _SPARE:
        return None
    return SpareName(node_id=parts[1], tag=parts[2])


def parse_name(name: str) -> ControllerName | WorkerName | None:
    """What a name says, or None for a name that is none of ours."""
    parts = name.split("/")
    if len(parts) != 4 or not parts[2].isdecimal():
        return None
    key = JobKey(job_id=parts[1], attempt=int(parts[2]))
    if parts[0] == _CONTROLLER and parts[3].isdecimal():
        return ControllerName(key=key, term=int(parts[3]))
    if parts[0] == _WORKER:
        return WorkerName(key=key, worker_id=parts[3])
    return None


def highest_term(names: list[str], key: JobKey) -> int:
    """The highest term of an attempt's controllers among ``names``, 0 where there is none."""
    found = (parse_name(name) for name in names)
    return max((n.term for n in found if isinstance(n, ControllerName) and n.key == key), default=0)


def worker_ids(names: list[str], key: JobKey) -> tuple[str, ...]:
    """The workers of an attempt among ``names``."""
    found = (parse_name(name) for name in names)
    return tuple(n.worker_id for n in found if isinstance(n, WorkerName) and n.key == key)

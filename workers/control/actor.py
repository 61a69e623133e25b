"""The worker's Ray face: one process, one rank; training itself is in ``workers.training``.

Every call carries the caller's term. A lower one than the highest seen is refused with StaleTermError.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import ray

from workers.assignment import Assignment, JobKey
from workers.control import offspring
from workers.control.lease import Lease
from workers.control.names import NODE_ID_LABEL, SpareName, controller_name, parse_spare, pool_name, worker_name
from workers.control.rendezvous import RendezvousError
from workers.control.roster import Roster
from workers.errors import ReturnedError, StaleTermError
from workers.plan import Plan, PlanId
from workers.racks import LABEL
from workers.scratch import occupy
from workers.status import Acknowledged, WorkerStatus

if TYPE_CHECKING:
    from workers.training.session import Session

CALL_S = 15.0
"""Bound of one call to the controller beyond what it waits for by itself."""

TICK_S = 1.0
EXIT_S = 3.0
"""After the end, how long pending calls have to get their answers before the process leaves anyway."""

STOP_S = 600.0
"""How long the last save may take, where no controller is there to be the judge of that."""

UNSTARTED_LEASE_S = 600.0
POOL_LEASE_S = 30.0
"""A sweep that goes on has the next trial sooner; after that the memory is worth more than the time."""

SEAT_S = 0.25
SEAT_LOOK_S = 0.005
MAX_TAIL_BYTES = 256 * 2**10


Tail: TypeAlias = tuple[int, bytes]
"""A first byte's offset, and the bytes from there."""


class TrainWorker:
    """One worker of one attempt; made an actor by ``train_worker_actor``.

    A spare becomes a worker when it is started; one that ``is_ready`` has loaded torch before it answers its first
    call. What was a spare may wait in a pool after its end as a worker, to become another: each call names the worker
    that it is for.
    Its groups of methods never queue behind each other: ``start``; ``poll``; ``halt``, ``stop``, ``tail``,
    ``take_seat``, ``call_up`` and ``renew``; ``watch``.
    """

    def __init__(self, namespace: str, *, is_ready: bool = False) -> None:
        self._namespace = namespace
        self._node_id = ray.get_runtime_context().get_node_id()
        self._rack = str(ray.get_runtime_context().get_node_labels().get(LABEL, ""))
        self._changed = threading.Condition()
        self._term = 0
        self._name = ""
        self._pool = ""
        self._is_waiting = False
        self._seat: Any = None
        self._session: Session | None = None
        self._num_rests = 0
        self._lease = Lease(lease_s=UNSTARTED_LEASE_S, now_s=time.monotonic())
        self._leaving = threading.Event()
        self._has_ended = False
        threading.Thread(target=self._keep, name="lease", daemon=True).start()
        if is_ready:
            self._get_ready()

    def _get_ready(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # as ``start`` sets it for whom a spare fits (``Launch.fits_spare``)
        from workers.training.session import load

        load()
        # What was loaded stays for good: to look through all of it between two trials would take longer than they do.
        gc.freeze()

    def start(self, assignment: Assignment, term: int, bundle: list[Any]) -> int:
        """Begin to build the task, in a thread of its own, and answer at once with the process id.

        ``bundle`` holds one reference to the archive's bytes, or nothing for built-in recipes.
        """
        with self._changed:
            self._name, self._pool = worker_name(assignment.key, assignment.worker_id), assignment.pool
        self._hear(self._name, term)
        self._num_rests = 0  # those before were another worker's
        assigned: Callable[[], dict[str, float]] = ray.get_runtime_context().get_assigned_resources
        assignment = assignment.as_placed(assigned())
        os.environ["OMP_NUM_THREADS"] = str(max(1, int(assignment.spec.resources.cpus)))
        os.environ.update(assignment.env)
        # The one place where Ray's side of a worker meets torch's.
        from workers.training.logs import redirect_output
        from workers.training.session import Session

        occupy(Path(assignment.scratch), assignment.key.job_id)
        redirect_output(Path(assignment.log_file))
        offspring.guard()
        calls = ControllerCalls(assignment.key, self._namespace, lambda: self._term)
        fetch = (lambda: _fetch_bundle(bundle[0], calls)) if bundle else None
        session = Session(assignment, calls, fetch, self._has_come_to_rest)
        session.start()
        with self._changed:
            self._session = session
            self._lease.lease_s = assignment.lease_s
        return os.getpid()

    @ray.method(concurrency_group="orders")
    def take_seat(self, room: dict[str, float]) -> bool:
        """Reserve what a spare needs as a worker, on its node: Ray frees it when this process ends, however that is.

        False where the node does not have it; then nothing is reserved.
        """
        return self._sit(room)

    @ray.method(concurrency_group="orders")
    def call_up(self, room: dict[str, float], name: str) -> bool:
        """Out of the pool, to become the worker of that name: as ``take_seat``, and False where another was faster."""
        with self._changed:
            if not self._is_waiting:
                return False
            self._is_waiting, self._name = False, name  # so that nobody of the job before it is heeded
            self._lease = Lease(lease_s=UNSTARTED_LEASE_S, now_s=time.monotonic())
        try:
            if not self._sit(room):
                with self._changed:
                    self._is_waiting, self._name = True, ""
                    self._lease = Lease(lease_s=POOL_LEASE_S, now_s=time.monotonic())
                return False
            self._roster().rename(self._spare(), name)
        except Exception:
            self._leaving.set()  # nobody's worker and in no pool: it must not hold its room until its lease ends
            raise
        return True

    @ray.method(concurrency_group="orders")
    def dismiss(self) -> None:
        """Leave, where it waits in a pool; nothing happens to one that works."""
        with self._changed:
            if self._is_waiting:
                self._is_waiting = False
                self._leaving.set()

    @ray.method(concurrency_group="orders")
    def renew(self) -> None:
        """A spare may go on waiting."""
        with self._changed:
            self._lease.renew()

    @ray.method(concurrency_group="poll")
    def poll(self, name: str, term: int, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> WorkerStatus:
        """Hand over the plan and what the store has; what this worker is and has to tell."""
        status = self._called(name, term).poll(term, plan, acked, wants_records)
        if status.build is None:
            return status
        # Which node this is only Ray knows.
        return replace(status, build=replace(status.build, node_id=self._node_id, rack=self._rack))

    @ray.method(concurrency_group="orders")
    def halt(self, name: str, term: int, plan_id: PlanId) -> None:
        """Leave the group of any plan up to this id now, and never enter such a plan again."""
        self._called(name, term).halt(term, plan_id)

    @ray.method(concurrency_group="orders")
    def stop(self, name: str, term: int, save: bool) -> None:
        """End: leave the group, save the last commit if asked, clean up; the process leaves, or goes into its pool."""
        self._hear(name, term)
        if self._session is not None:
            self._session.stop(term, save)
        self._leaving.set()

    @ray.method(concurrency_group="orders")
    def tail(self, name: str, term: int, path: str, offset: int) -> Tail | None:
        """What another worker on this node left in its log at ``path``, from ``offset`` on; see ``read_tail``."""
        self._hear(name, term)
        return read_tail(path, offset)

    @ray.method(concurrency_group="watch")
    def watch(self, name: str, term: int, num_rests: int) -> int | None:
        """Wait until this worker has come to rest more often than ``num_rests``; None once a higher term was heard of.

        Gives how often it has. Its end shows as the actor's death: this call makes the process leave. A killed
        process shows so too. One that goes into its pool raises ReturnedError.
        """
        self._hear(name, term)
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._has_changed(name, term, num_rests))
            self._check_name(name)
            told = None if self._term > term else self._num_rests
        if self._has_ended:
            leave: Callable[[], None] = ray.actor.exit_actor
            leave()
        return told

    def _has_changed(self, name: str, term: int, num_rests: int) -> bool:
        return self._is_elsewhere(name) or self._term > term or self._num_rests > num_rests

    def _has_come_to_rest(self) -> None:
        with self._changed:
            self._num_rests += 1
            self._changed.notify_all()

    def _sit(self, room: dict[str, float]) -> bool:
        here = [{NODE_ID_LABEL: self._node_id}]
        seat = ray.util.placement_group([room], strategy="STRICT_PACK", bundle_label_selector=here)
        until_s = time.monotonic() + SEAT_S
        while ray.util.placement_group_table(seat)["state"] != "CREATED":
            if time.monotonic() > until_s:
                ray.util.remove_placement_group(seat)
                return False
            time.sleep(SEAT_LOOK_S)
        self._seat = seat
        return True

    def _check_name(self, name: str) -> None:
        if self._is_elsewhere(name):
            raise ReturnedError(f"{name} has ended; its process is {self._name or 'in a pool'} by now")

    def _is_elsewhere(self, name: str) -> bool:
        return self._is_waiting or (self._name != "" and self._name != name)

    def _hear(self, name: str, term: int) -> None:
        with self._changed:
            self._check_name(name)
            if term < self._term:
                raise StaleTermError(term, self._term)
            if term > self._term:
                self._term = term
                self._changed.notify_all()
            self._lease.renew()

    def _called(self, name: str, term: int) -> Session:
        self._hear(name, term)
        if self._session is None:
            raise RendezvousError("this worker was never told what to train; end it and start another")
        return self._session

    def _keep(self) -> None:
        """Until this process is to leave for good: one worker after another, then its end."""
        try:
            while self._is_told_to_leave() and self._return():
                pass
        except Exception:  # Ray's head does not answer: who waits for nobody must not stay
            traceback.print_exc()
        gc.freeze()  # at its end the interpreter would look through all that was loaded, for more than a second
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        time.sleep(EXIT_S)
        os._exit(0)

    def _is_told_to_leave(self) -> bool:
        """Count the lease until this worker is to leave, and see the session to its end; False without a controller."""
        is_told = True
        while not self._leaving.wait(TICK_S):
            if self._lease.tick(time.monotonic()):
                is_told = False
                if self._session is not None:
                    print(f"no controller called for {self._lease.lease_s:g} s: saving and leaving", flush=True)
                    self._session.stop(self._term, save=True)
                self._leaving.set()
        has_ended = self._session is None or self._session.wait_ended(STOP_S)
        return is_told and has_ended

    def _return(self) -> bool:
        """Into the pool, where there is one: free the room, then let others know. False where it is to leave."""
        if not self._pool or self._seat is None or self._session is None:
            return False
        ray.util.remove_placement_group(self._seat)
        pool = self._pool
        with self._changed:
            self._seat = self._session = None
            self._name, self._pool, self._term = "", "", 0
            self._lease = Lease(lease_s=POOL_LEASE_S, now_s=time.monotonic())
            self._leaving.clear()
            self._is_waiting = True
            self._changed.notify_all()
        self._roster().rename(self._spare(), pool_name(pool))
        gc.collect()
        gc.freeze()  # what the code has loaded serves the next trial too; looking through it took longer than a step
        return True

    def _roster(self) -> Roster:
        return Roster(self._namespace)

    def _spare(self) -> SpareName:
        spare = parse_spare(ray.get_runtime_context().get_actor_name() or "")
        assert spare is not None, "only spares take seats"
        return spare


class ControllerCalls:
    """The rendezvous of the term in office, by Ray; each call has a bound."""

    def __init__(self, key: JobKey, namespace: str, term: Callable[[], int]) -> None:
        self._key, self._namespace, self._term = key, namespace, term
        self._found: tuple[int, Any] | None = None
        node_address: Callable[[], str] = ray.util.get_node_ip_address
        self._address = node_address()

    @property
    def address(self) -> str:
        """The address by which Ray knows this node: what a host's own name resolves to may be loopback."""
        return self._address

    def set(self, group: str, key: str, value: bytes) -> None:
        """Raises RendezvousError when the generation is superseded or the controller cannot be reached."""
        self._call("kv_set", CALL_S, group, key, value)

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        """The value, waited for at most ``timeout_s``. Raises as ``set``."""
        value = self._call("kv_get", timeout_s + CALL_S, group, key, timeout_s)
        assert isinstance(value, bytes)
        return value

    def add(self, group: str, key: str, amount: int) -> int:
        """The counter's new value. Raises as ``set``."""
        total = self._call("kv_add", CALL_S, group, key, amount)
        assert isinstance(total, int)
        return total

    def check(self, group: str, keys: list[str]) -> bool:
        """Whether all keys are set; False when nobody answers."""
        try:
            return bool(self._call("kv_check", CALL_S, group, keys))
        except RendezvousError:
            return False

    def bundle(self) -> bytes:
        """The bundle's bytes from the controller in office."""
        reference = self._call("bundle", CALL_S)
        return _fetched(reference[0])

    def _call(self, method: str, timeout_s: float, *args: object) -> Any:
        term = self._term()
        try:
            if self._found is None or self._found[0] != term:
                self._found = (term, Roster(self._namespace).find(controller_name(self._key, term)))
            return ray.get(getattr(self._found[1], method).remote(*args), timeout=timeout_s)
        except RendezvousError as error:
            raise RendezvousError(error.message) from None
        except (ray.exceptions.RayError, ValueError) as error:
            # ValueError: no actor of that name (any more).
            raise RendezvousError(
                f"the controller of term {term} did not answer {method}: {type(error).__name__}; wait for a plan"
            ) from error


def _fetch_bundle(reference: Any, calls: ControllerCalls) -> bytes:
    """The archive from the controller that started this worker, or from its successor when that one is gone."""
    try:
        return _fetched(reference)
    except (ray.exceptions.OwnerDiedError, ray.exceptions.ObjectLostError):
        return calls.bundle()


def _fetched(reference: Any) -> bytes:
    data = ray.get(reference, timeout=10 * CALL_S)
    assert isinstance(data, bytes)
    return data


def read_tail(path: str, offset: int) -> Tail | None:
    """A log from byte ``offset`` on, or its last ``MAX_TAIL_BYTES`` where that is less; None where there is none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(offset, size - MAX_TAIL_BYTES))
            return (begin, file.read(MAX_TAIL_BYTES))
    except OSError:
        return None


@functools.cache
def train_worker_actor() -> Any:
    """The actor class, one for the process as Ray forgets none; options that say where it runs are the caller's."""
    options: dict[str, Any] = {
        "max_restarts": 0,
        "max_task_retries": 0,
        "concurrency_groups": {"poll": 1, "orders": 3, "watch": 4},
    }
    decorate: Any = ray.remote(**options)
    return decorate(TrainWorker)

"""The fleet by Ray, one poll in flight for each worker."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    OutOfMemoryError,
    OwnerDiedError,
    RayActorError,
    RayError,
    RayTaskError,
)

from workers.assignment import JobKey, log_file
from workers.control.actor import Tail, read_tail
from workers.control.fleet import Heard
from workers.control.hands import Hands, To
from workers.control.head import Head
from workers.control.launch import Launch
from workers.control.names import highest_term, worker_ids, worker_name
from workers.control.placing import place
from workers.control.settling import settle
from workers.errors import ReturnedError, StaleTermError
from workers.plan import Plan, PlanId
from workers.secrets import secrets_of
from workers.status import Acknowledged, WorkerStatus

POLL_S = 3.0
"""Bound of one poll: what takes longer is given up, so that a silent worker is asked again."""

CALL_S = 10.0
RETRY_S = 0.2

_LOST = (RayActorError, OutOfMemoryError, NodeDiedError, OwnerDiedError)


@dataclass(slots=True)
class _Link:
    """One worker: its actor once it is made, and which calls are in flight."""

    worker_id: str
    avoids: frozenset[str] = frozenset()
    must_fit: bool = False
    actor: Any = None
    is_up: bool = False
    is_taken_back: bool = False
    is_refusing: bool = False
    calls: set[str] = field(default_factory=set)


class RayFleet:
    """The fleet of ``key`` under ``term``."""

    def __init__(self, key: JobKey, term: int, hands: Hands, launch: Launch) -> None:
        self.news = asyncio.Event()
        self._key, self._term, self._launch = key, term, launch
        self._hands = hands
        self._links: dict[str, _Link] = {}
        self._statuses: dict[str, WorkerStatus] = {}
        self._lost: dict[str, str] = {}
        self._rested: frozenset[str] = frozenset()
        self._is_superseded = False
        self._head = Head(self._look_for_successor)
        self._nodes: dict[str, str] = {}
        self._asked_nodes: set[str] = set()
        self._nodes_seen_s: dict[str, float] = {}
        self._bundle: list[Any] | None = None
        self._bundle_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def worker_ids(self) -> tuple[str, ...]:
        return tuple(self._links)

    async def adopt(self) -> tuple[str, ...]:
        found = worker_ids(await self._hands.names(), self._key)
        for worker_id in found:
            self._links[worker_id] = _Link(worker_id)
            self._spawn(self._find(self._links[worker_id]))
        return found

    def heard(self) -> Heard:
        refusing = frozenset(i for i, link in self._links.items() if link.is_refusing)
        heard = Heard(
            statuses=self._statuses,
            lost=self._lost,
            rested=self._rested,
            refusing=refusing,
            nodes=dict(self._nodes),
            head_seen_s=self._head.seen_s,
            was_cut_off=self._head.take_was_away(),
            nodes_seen_s=dict(self._nodes_seen_s),
            is_superseded=self._is_superseded,
        )
        self._statuses, self._lost, self._rested = {}, {}, frozenset()
        return heard

    def start(self, worker_id: str, avoids: frozenset[str], *, must_fit: bool = False) -> None:
        self._links[worker_id] = _Link(worker_id, avoids, must_fit)
        self._spawn(self._start(self._links[worker_id]))

    def can_poll(self, worker_id: str) -> bool:
        link = self._links.get(worker_id)
        return link is not None and link.is_up and "poll" not in link.calls

    def poll(self, worker_id: str, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> None:
        self._call(self._links[worker_id], self._hands.poll, POLL_S, plan, acked, wants_records)

    def halt(self, worker_id: str, plan_id: PlanId) -> None:
        if (link := self._links.get(worker_id)) is not None and link.is_up:
            self._call(link, self._hands.halt, CALL_S, plan_id)

    def stop(self, worker_id: str, save: bool) -> None:
        link = self._links.get(worker_id)
        if link is not None and link.is_up:
            self._call(link, self._hands.stop, CALL_S, save)
        elif link is not None and not link.is_taken_back:
            self.kill(worker_id)

    def kill(self, worker_id: str) -> None:
        if (link := self._links.get(worker_id)) is not None:
            link.is_taken_back = True
            self._spawn(self._kill(link))

    def ask_head(self) -> None:
        self._spawn(self._ask_head())

    def ask_node(self, node_id: str) -> None:
        if node_id not in self._asked_nodes:
            self._asked_nodes.add(node_id)
            self._spawn(self._ask_node(node_id))

    async def tail(self, worker_id: str, offset: int) -> Tail | None:
        path = log_file(self._launch.scratch, self._key, worker_id)
        found = await asyncio.to_thread(read_tail, path, offset)
        neighbours = [link for link in self._links.values() if link.is_up and link.worker_id != worker_id]
        while found is None and neighbours:
            found = await self._tail_by(neighbours.pop(0), path, offset)
        if found is None:
            return None
        begin, data = found
        return begin, secrets_of(self._launch.spec, self._launch.env).tail(data, is_cut=begin > offset)

    async def _tail_by(self, link: _Link, path: str, offset: int) -> Tail | None:
        """What this worker can read of another's log; None where it does not answer."""
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(CALL_S):
                return await self._hands.tail(link.actor, self._to(link), path, offset)
        return None

    def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()

    def leave(self) -> None:
        self.abandon()
        self._hands.leave()

    async def bundle(self) -> list[Any]:
        async with self._bundle_lock:
            if self._bundle is None:
                file = self._launch.bundle_file
                # An object dies with its owner: each controller puts the bytes itself.
                self._bundle = [] if file is None else [await self._hands.put(file)]
        return self._bundle

    async def _start(self, link: _Link) -> None:
        try:
            bundle = await self.bundle()
            link.actor = await self._placed(link)
            if link.is_taken_back:
                await self._kill(link)
            if await self._has_successor():
                # It may have looked for workers before this one had its name, and would train beside it.
                await self._hands.kill(link.actor)
                self._supersede()
                return
            assignment = self._launch.assignment(self._key, link.worker_id)
            await self._hands.start(link.actor, assignment, self._to(link), bundle)
        except (RayError, OSError, ValueError) as error:
            self._spawn(self._kill(link))
            self._lose(link, error)
            return
        self._up(link)

    async def _placed(self, link: _Link) -> Any:
        name = worker_name(self._key, link.worker_id)
        make = partial(place, self._hands, self._launch, name, link.avoids, must_fit=link.must_fit)
        if self._launch.spec.resources.cpus_instead is None:
            return await make()
        return await settle(self._hands, name, make, lambda: link.is_taken_back or self._is_superseded)

    async def _find(self, link: _Link) -> None:
        name = worker_name(self._key, link.worker_id)
        try:
            link.actor = await self._hands.find(name)
        except (RayError, ValueError) as error:
            self._lose(link, error)
            return
        self._up(link)
        # One that hangs will never tell; where Ray fails to, in whichever way, it is waited for longer.
        with contextlib.suppress(Exception):
            if (node_id := await self._hands.node_of(link.actor)) is not None:
                self._nodes[link.worker_id] = node_id

    def _up(self, link: _Link) -> None:
        link.is_up = True
        self._spawn(self._watch(link))
        self.news.set()

    async def _watch(self, link: _Link) -> None:
        """A pending call shows within milliseconds that a worker waits for a word, or is dead."""
        num_rests = 0
        while self._links.get(link.worker_id) is link:
            try:
                told = await self._hands.watch(link.actor, self._to(link), num_rests)
                if told is None:
                    self._supersede()
                    return
                num_rests = told
                self._rested |= {link.worker_id}
                self.news.set()
            except ActorUnavailableError:
                self._refused(link)
                await asyncio.sleep(RETRY_S)
            except RayError as error:
                self._failed(link, error)
                return

    def _to(self, link: _Link) -> To:
        return To(worker_name(self._key, link.worker_id), self._term)

    def _call(self, link: _Link, method: Callable[..., Awaitable[object]], bound_s: float, *args: object) -> None:
        if method.__name__ not in link.calls:
            link.calls.add(method.__name__)
            call = partial(method, link.actor, self._to(link), *args)
            self._spawn(self._answered(link, method.__name__, bound_s, call))

    async def _answered(self, link: _Link, method: str, bound_s: float, call: Callable[[], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(bound_s):
                answer = await call()
        except TimeoutError:
            return  # silence is judged by the turn
        except ActorUnavailableError:
            self._refused(link)
            return
        except RayError as error:
            self._failed(link, error)
            return
        finally:
            link.calls.discard(method)
        link.is_refusing = False
        if isinstance(answer, WorkerStatus) and self._links.get(link.worker_id) is link:
            self._statuses[link.worker_id] = answer
            self.news.set()

    async def _kill(self, link: _Link) -> None:
        while not await self._has_looked():
            await asyncio.sleep(RETRY_S)
        if not self._is_superseded and link.actor is not None and not await self._has_returned(link):
            await self._hands.kill(link.actor)

    async def _has_returned(self, link: _Link) -> bool:
        """Whether the process serves somebody else by now: one that hangs does not."""
        return bool(self._launch.pool) and worker_name(self._key, link.worker_id) not in await self._hands.names()

    async def _ask_head(self) -> None:
        if await self._head.ask():
            self.news.set()

    async def _ask_node(self, node_id: str) -> None:
        try:
            async with asyncio.timeout(CALL_S):
                await self._hands.ask_node(node_id)
            self._nodes_seen_s[node_id] = time.monotonic()
            self.news.set()
        except (TimeoutError, RayError):
            await asyncio.sleep(RETRY_S)  # it may be known to be gone, and refused at once
        finally:
            self._asked_nodes.discard(node_id)

    async def _has_looked(self) -> bool:
        """Whether Ray's head told of all controllers there are."""
        with contextlib.suppress(RayError):
            await self._look_for_successor()
            return True
        return False

    async def _look_for_successor(self) -> None:
        if await self._has_successor():
            self._supersede()

    async def _has_successor(self) -> bool:
        return highest_term(await self._hands.names(), self._key) > self._term

    def _refused(self, link: _Link) -> None:
        if not link.is_refusing:
            link.is_refusing = True
            self.news.set()

    def _failed(self, link: _Link, error: RayError) -> None:
        if isinstance(error, RayTaskError) and isinstance(error.cause, StaleTermError):
            self._supersede()
            return
        has_returned = isinstance(error, RayTaskError) and isinstance(error.cause, ReturnedError)
        if not isinstance(error, _LOST) and not has_returned:
            # It lives but cannot serve: nothing good comes of keeping it.
            self._spawn(self._kill(link))
        self._lose(link, ReturnedError("it ended") if has_returned else error)

    def _lose(self, link: _Link, error: Exception) -> None:
        if self._links.get(link.worker_id) is link:
            del self._links[link.worker_id]
            self._lost[link.worker_id] = death_in_words(error)
            self.news.set()

    def _supersede(self) -> None:
        self._is_superseded = True
        self.news.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def death_in_words(error: Exception) -> str:
    """Why a worker is gone, in a few words for the timeline."""
    text = str(error)
    pid = re.search(r"pid: (\d+)", text)
    who = f"its process {pid[1]}" if pid else "its process"
    if isinstance(error, ReturnedError):
        return error.message
    if isinstance(error, OutOfMemoryError):
        return f"{who} was ended because its node ran out of memory"
    if isinstance(error, NodeDiedError) or "node has died" in text:
        return "its node died"
    if "INTENDED_USER_EXIT" in text or "exit_actor" in text:
        return "it ended"
    if "ray.kill" in text:
        return f"{who} was killed"
    if isinstance(error, RayTaskError):
        return f"it failed to answer: {str(error.cause)[:200]}"
    if isinstance(error, RayActorError):
        return f"{who} died"
    return f"it could not be started: {text[:200]}"

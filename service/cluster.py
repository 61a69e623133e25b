"""The service's only use of Ray: one driver, one thread for its blocking calls, a bound for each call."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
from ray._private.state import available_resources_per_node, state
from ray._private.utils import check_version_info
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # of Cython
from ray.autoscaler.sdk import request_resources
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply  # type: ignore[attr-defined]  # made by protoc
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]  # made by protoc
from ray.exceptions import ActorUnavailableError, AuthenticationError, RayError, RayTaskError
from ray.experimental.internal_kv import internal_kv_get_gcs_client
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.head_calls import HeadCalls
from service.ports import (
    ClusterAwayError,
    ClusterLostError,
    ControllerFaultError,
    ControllerLostError,
    ControllerSilentError,
)
from service.raylet import raylets_here
from service.records import Autoscaling, ClusterView, NodeView
from service.supervise.processes import Identity
from tuning.controller import sweep_controller_actor
from tuning.orders import Answer, Question
from workers.assignment import SWEEP_LABEL, JobKey
from workers.control.controller import job_controller_actor
from workers.control.hosted import Hosted, NotHostedError
from workers.control.launch import Launch
from workers.control.names import NODE_ID_LABEL, controller_name, sweep_name
from workers.control.roster import Roster
from workers.control.spares import Spares
from workers.racks import LABEL
from workers.status import Acknowledged, Direction, JobSnapshot

CONNECT_S = 60.0
CALL_S = 10.0
PROBE_S = 2.0
PREPARE_S = 30.0
MAX_CAUSE_CHARS = 300
SEE_S = 30.0
SITE_S = 0.5
"""Jobs that come and go ask several times a second what is free, and Ray's head answers one call after another."""

T = TypeVar("T")

# Ray's functions without types, given theirs.
_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
_leaving: Callable[[], dict[str, int]] = state.get_draining_nodes
_gcs_client: Callable[[], Any] = internal_kv_get_gcs_client
_free_by_node: Callable[[], dict[str, dict[str, float]]] = available_resources_per_node

_ALIVE = GcsNodeInfo.GcsNodeState.ALIVE
STATUS_S = 5.0
MAX_FAILURES = 3

_RESOURCES = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_bytes"}


@dataclass(frozen=True, slots=True)
class _Site:
    """What changes less often than what is free."""

    seen_s: float
    nodes: list[dict[str, Any]]
    leaving: dict[str, int]
    status: bytes


class Cluster:
    """A cluster at ``address`` (host:port of its head), of which this installation uses one ``namespace``.

    What Ray needs of the environment (token, loopback) was set before this process began. A driver
    whose head is gone is ended by Ray's own core after a minute, without an exception: whoever gets
    ClusterLostError closes and leaves before that.
    """

    def __init__(self, address: str, namespace: str) -> None:
        self._address, self._namespace = address, namespace
        self._calls = HeadCalls()
        self._roster = Roster(namespace)
        self._spares = Spares(self._roster)
        self._controllers: dict[str, Any] = {}
        self._raylet: Identity | None = None
        self._site: _Site | None = None

    async def connect(self) -> None:
        """Join as a driver of the node on this machine; ClusterAwayError where there is none to join."""
        await self.look()
        try:
            await self._blocking(self._init, CONNECT_S)
        except ConnectionError as error:
            raise ClusterLostError(f"Ray at {self._address} refused the connection ({str(error)[:200]})") from error
        self._raylet = raylets_here().get(ray.get_runtime_context().get_node_id())

    async def look(self) -> str:
        """What is there to join, in words, without joining; ClusterAwayError where this process cannot."""
        return await self._blocking(self._look, CONNECT_S)

    def _look(self) -> str:
        """Ray itself would look for a minute, and say neither that no node is here nor that its token is wrong."""
        try:
            head = GcsClient(address=self._address)
            nodes = head.get_all_node_info(timeout=CALL_S, state_filter=_ALIVE)
            told = head.internal_kv_get(CLUSTER_METADATA_KEY, namespace=KV_NAMESPACE_CLUSTER, timeout=CALL_S)
        except AuthenticationError as error:
            raise ClusterAwayError(f"Ray at {self._address} refuses our token; see RAY_AUTH_TOKEN_PATH") from error
        except RayError as error:
            raise ClusterAwayError(f"Ray at {self._address} does not tell its nodes: {str(error)[:200]}") from error
        if not {node_id.hex() for node_id in nodes} & raylets_here().keys():
            raise ClusterAwayError(
                f"no node of the Ray at {self._address} runs on this machine, where the service is; start one: "
                f"ray start --address={self._address} --num-cpus=0"
            )
        try:
            check_version_info(json.loads(told), "this machine")
        except RuntimeError as error:
            why = " ".join(str(error).split())
            raise ClusterAwayError(
                f"Ray at {self._address} is of another version than this environment: {why}"
            ) from None
        return f"Ray {ray.__version__}, {len(nodes)} nodes"

    def _init(self) -> None:
        ray.init(
            address=self._address,
            namespace=self._namespace,
            log_to_driver=False,
            configure_logging=False,
            ignore_reinit_error=True,
        )

    async def close(self) -> None:
        """Leave, where Ray answers; after a call that hangs it is left behind with this process."""
        self._controllers.clear()
        if self._calls.is_idle:
            with contextlib.suppress(ClusterLostError):
                await self._blocking(ray.shutdown, CALL_S)
        self._calls.close()

    async def is_reachable(self) -> bool:
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(PROBE_S):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    # gRPC speaks first. What only accepts is a proxy with nothing behind it, or a head that is stopped.
                    return bool(await reader.read(1))
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    def has_node(self) -> bool:
        return self._raylet is not None and self._raylet.is_alive()

    async def names(self) -> list[str]:
        return await self._blocking(self._roster.names)

    async def start_controller(self, key: JobKey, term: int, launch: Launch) -> None:
        name, sweep_id = controller_name(key, term), launch.spec.labels.get(SWEEP_LABEL)
        host = None if sweep_id is None else await self._blocking(lambda: self._roster.host_of(sweep_id))
        if host is None:
            self._controllers[name] = await self._blocking(lambda: self._make_controller(key, term))
            await self._ask(name, self._controllers[name].prepare.remote(term, launch), PREPARE_S)
        else:
            hosting = await self._find(host)
            await self._ask(host, hosting.host.remote(key, term, launch), PREPARE_S)
            self._controllers[name] = Hosted(hosting, name)

    def _make_controller(self, key: JobKey, term: int) -> Any:
        options = self._beside(controller_name(key, term))
        return job_controller_actor().options(**options).remote(key, term, self._namespace)

    def _beside(self, name: str) -> dict[str, Any]:
        """Beside the service, so that what cuts a controller off cuts the service off, and it gets no successor.

        A label is waited for; an affinity is lost on a node that has just joined and knows no other.
        """
        here = {NODE_ID_LABEL: ray.get_runtime_context().get_node_id()}
        return {
            "name": name,
            "namespace": self._namespace,
            "lifetime": "detached",
            "get_if_exists": True,
            "label_selector": here,
        }

    async def ask_search(self, sweep_id: str, term: int, question: Question, bound_s: float) -> Answer | None:
        name = sweep_name(sweep_id, term)
        if name not in self._controllers:
            make = functools.partial(sweep_controller_actor().options, **self._beside(name))
            self._controllers[name] = await self._blocking(lambda: make().remote(self._namespace, name))
        answer = await self._ask(name, self._controllers[name].ask.remote(question), bound_s)
        assert answer is None or isinstance(answer, Answer)
        return answer

    async def end_search(self, sweep_id: str, term: int) -> bool:
        name = sweep_name(sweep_id, term)
        try:
            return bool(await self._ask(name, (await self._find(name)).retire.remote(), CALL_S))
        except ControllerLostError:
            return True  # its answer is its death
        except ControllerSilentError:
            await self.kill([name])
            return True

    async def end_pools(self, sweep_id: str) -> None:
        await self._blocking(lambda: self._roster.end_pools(sweep_id))

    async def direct(
        self, key: JobKey, term: int, direction: Direction, acked: Acknowledged, bound_s: float, wait_s: float
    ) -> JobSnapshot | None:
        name = controller_name(key, term)
        controller = await self._find(name)
        answer = await self._ask(name, controller.direct.remote(term, direction, acked, wait_s), wait_s + bound_s)
        assert answer is None or isinstance(answer, JobSnapshot)
        return answer

    async def end_controller(self, key: JobKey, term: int) -> None:
        name = controller_name(key, term)
        # Its answer is its death.
        with contextlib.suppress(ControllerLostError, ControllerSilentError):
            await self._ask(name, (await self._find(name)).end.remote(term), CALL_S)
        self._controllers.pop(name, None)

    async def kill(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(ControllerLostError):
                actor = await self._find(name)
                if isinstance(actor, Hosted) and await self._is_abandoned(name, actor):
                    continue
                process = actor.host if isinstance(actor, Hosted) else actor
                await self._blocking(functools.partial(ray.kill, process))
            self._controllers.pop(name, None)

    async def _is_abandoned(self, name: str, actor: Hosted) -> bool:
        """Whether a controller left the process that it was in; one that cannot takes all that is in it along."""
        self._controllers.pop(name, None)
        with contextlib.suppress(ControllerSilentError, ControllerFaultError):
            await self._ask(name, actor.abandon.remote(), PROBE_S)
            return True
        return False

    async def who_sees(self, path: str, node_ids: Sequence[str]) -> frozenset[str]:
        answers = await asyncio.gather(*(self._sees(path, node_id) for node_id in node_ids))
        return frozenset(node_id for node_id, sees in zip(node_ids, answers, strict=True) if sees)

    async def _sees(self, path: str, node_id: str) -> bool:
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        # The first one tells Ray's head of the function, and blocks until that answers.
        task = await self._blocking(lambda: _is_file_task().options(scheduling_strategy=place).remote(path))
        try:
            async with asyncio.timeout(SEE_S):
                return bool(await task)
        except (TimeoutError, RayError):
            ray.cancel(task, force=True)
            return False

    async def view(self) -> ClusterView:
        return await self._blocking(self._see)

    def _see(self) -> ClusterView:
        now_s = time.monotonic()
        if self._site is None or now_s - self._site.seen_s >= SITE_S:
            self._site = _Site(now_s, _nodes(), _leaving(), _autoscaler_status())
        site, free = self._site, _free_by_node()
        return ClusterView(
            is_up=True,
            address=self._address,
            ray_version=ray.__version__,
            nodes=tuple(_node(n, free.get(n["NodeID"], {}), site.leaving.get(n["NodeID"])) for n in site.nodes),
            autoscaling=_autoscaling(site.status),
        )

    async def demand(self, bundles: Sequence[Mapping[str, float]]) -> None:
        asked = [{theirs: bundle[ours] for theirs, ours in _RESOURCES.items() if ours in bundle} for bundle in bundles]
        await self._blocking(lambda: request_resources(bundles=asked))

    async def keep_spares(self, wanted: Mapping[str, int]) -> None:
        await self._blocking(lambda: self._spares.keep(wanted))

    async def _find(self, name: str) -> Any:
        if name not in self._controllers:
            try:
                self._controllers[name] = await self._blocking(lambda: self._roster.find(name))
            except ValueError:
                raise ControllerLostError(f"there is no actor {name}") from None
        return self._controllers[name]

    async def _ask(self, name: str, reference: Awaitable[T], bound_s: float) -> T:
        try:
            async with asyncio.timeout(bound_s):
                return await reference
        except TimeoutError:
            raise ControllerSilentError(f"{name} did not answer within {bound_s:g} s") from None
        except ActorUnavailableError as error:
            raise ControllerSilentError(f"{name} cannot be reached: {error}") from None
        except RayTaskError as error:
            if isinstance(error.cause, NotHostedError):
                self._controllers.pop(name, None)
                raise ControllerLostError(f"{name} is gone: {error.cause.message}") from None
            raise ControllerFaultError(f"{name} failed: {error.cause}") from error
        except RayError as error:
            self._controllers.pop(name, None)
            raise ControllerLostError(f"{name} is gone: {cause_of_death(error)}") from None

    async def _blocking(self, call: Callable[[], T], bound_s: float = CALL_S) -> T:
        try:
            return await self._calls.run(call, bound_s)
        except (TimeoutError, RayError) as error:
            raise ClusterLostError(f"Ray at {self._address} did not answer within {bound_s:g} s") from error


def cause_of_death(error: RayError) -> str:
    """The one line of Ray's many that tells why an actor is dead, for its job's owner."""
    lines = str(error).strip().splitlines()
    told = next((line for line in lines if line.startswith("The actor is dead because")), lines[-1] if lines else "")
    return f"{type(error).__name__}: {told[:MAX_CAUSE_CHARS]}".rstrip(".: ")


def _node(node: Mapping[str, Any], free: Mapping[str, float], deadline_ms: int | None) -> NodeView:
    total = node.get("Resources", {})
    return NodeView(
        node_id=node["NodeID"],
        name=node.get("NodeName") or node.get("NodeManagerHostname") or node["NodeID"][:8],
        is_alive=bool(node["Alive"]),
        total={ours: float(total.get(theirs, 0.0)) for theirs, ours in _RESOURCES.items()},
        free={ours: float(free.get(theirs, 0.0)) for theirs, ours in _RESOURCES.items()},
        is_leaving=deadline_ms is not None,
        goes_at=deadline_ms / 1000.0 if deadline_ms else None,
        rack=str(node.get("Labels", {}).get(LABEL, "")),
    )


@functools.cache
def _is_file_task() -> Any:
    # One for the process: Ray forgets none that it exported.
    return ray.remote(num_cpus=0, max_retries=0)(os.path.isfile)


def _ours(bundle: Mapping[str, float]) -> dict[str, float]:
    return {ours: bundle[theirs] for theirs, ours in _RESOURCES.items() if theirs in bundle}


def _autoscaler_status() -> bytes:
    answer: bytes = _gcs_client().get_cluster_status(timeout_s=STATUS_S)
    return answer


def _autoscaling(status: bytes) -> Autoscaling | None:
    """Of what the head knows, what its autoscaler reported; Ray's own parser leaves out what it cannot satisfy."""
    reply = GetClusterStatusReply()
    reply.ParseFromString(status)
    if not reply.HasField("autoscaling_state"):
        return None
    state = reply.autoscaling_state
    reasons = dict.fromkeys(f"{f.ray_node_type_name}: {f.reason.strip()[:200]}" for f in state.failed_instance_requests)
    infeasible = state.infeasible_cluster_resource_constraints
    refused = [asked for constraint in infeasible for asked in constraint.resource_requests]
    return Autoscaling(
        num_coming=sum(asked.count for asked in state.pending_instance_requests) + len(state.pending_instances),
        failures=tuple(reasons)[-MAX_FAILURES:],
        is_infeasible=bool(infeasible),
        refused=tuple(_ours(asked.request.resources_bundle) for asked in refused for _ in range(asked.count)),
    )

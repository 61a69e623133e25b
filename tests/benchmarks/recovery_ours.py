"""Concertina as one side of the recovery measurement: its controller and workers, directed as the reconciler does."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.audit import Audit
from tests.benchmarks.leaving import leave_in_order
from tests.benchmarks.own_node import OwnNode
from tests.benchmarks.own_ray import OwnRay, own_ray
from tests.benchmarks.recovery_setting import Setting, Side
from workers.assignment import JobKey, Storage
from workers.errors import Failure
from workers.spec import JobSpec
from workers.status import Acknowledged, Direction, JobSnapshot, Outcome, RunGoal

NAMESPACE = "benchmark"
TASK_FILE = Path(__file__).with_name("paced_task.py")  # not imported: this process does without torch
TERM = 1
TICK_S = 0.5
"""How often the reconciler looks, where no nudge comes (settings, ``poll_s``)."""

VIEW_S = 2.0
"""How often it looks at the nodes (``VIEW_S`` there)."""

LOOK_S = 0.05
CALL_S = 20.0
END_S = 60.0
FOREVER_STEPS = 10**8


@contextmanager
def concertina(folder: Path, setting: Setting) -> Iterator[Side]:
    """Our own job on a Ray of two nodes with one CPU each; this process is its driver, so there is one of it."""
    with own_ray(folder, 1) as head:
        os.environ.update(head.variables)
        node = OwnNode(head, folder / "node.log")
        side = ConcertinaSide(head, node, folder, setting)
        leave_in_order()  # Ray has put a handler in its place
        try:
            # Not before the controller has its place: a node that has just joined may keep it, whatever it prefers.
            node.start()
            yield side
        finally:
            side.stop()
            node.end()


class ConcertinaSide:
    """One detached JobController with its TrainWorkers; a thread plays the reconciler and the store."""

    name = "concertina"

    def __init__(self, head: OwnRay, node: OwnNode, folder: Path, setting: Setting) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from workers.control.controller import job_controller_actor
        from workers.control.names import controller_name
        from workers.control.roster import Roster
        from workers.control.spares import Spares

        self.audit = Audit(folder / "audit")
        self.audit.folder.mkdir(parents=True)
        self._node = node
        ray.init(address=head.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        self._ray = ray
        self._roster = Roster(NAMESPACE)
        self._spares = Spares(self._roster)
        self._kept_s = float("-inf")
        key = JobKey(job_id="job_benchmark", attempt=1)
        options = {
            "name": controller_name(key, TERM),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            # As the reconciler places it: beside its driver.
            "scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True),
        }
        self._controller: Any = job_controller_actor().options(**options).remote(key, TERM, NAMESPACE)
        launch = _launch(folder, self.audit.folder, setting)
        ray.get(self._controller.prepare.remote(TERM, launch), timeout=CALL_S)
        self._direction = Direction(goal=RunGoal.RUN, num_workers=2, actor="user", reason="benchmark")
        self._acked = Acknowledged()
        self._trouble: Failure | str | None = None
        self._wake, self._has_ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._reconcile, daemon=True)
        self._thread.start()

    def scale(self, num_workers: int) -> None:
        """Direct the controller to a size; the order goes out at once, as after a nudge."""
        self._direction = Direction(
            goal=self._direction.goal, num_workers=num_workers, actor="user", reason="benchmark"
        )
        self._wake.set()

    def prepare(self) -> None:
        """Where there is room for a worker a spare waits for it, with torch loaded."""
        deadline_s = time.monotonic() + CALL_S
        while len(waiting := self._roster.spares()) < len(self._roomy()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no spare on nodes {self._roomy()} within {CALL_S:.0f} s")
            time.sleep(LOOK_S)
        # It answers once it is ready.
        self._ray.get([self._roster.spare(spare).renew.remote() for spare in waiting], timeout=CALL_S)

    def lose_node(self) -> float:
        """The second Ray node is killed with its worker."""
        return self._node.lose()

    def return_node(self) -> None:
        """A second Ray node joins; the job uses it by itself."""
        self._node.start()

    def check(self) -> None:
        """Raises RuntimeError when the attempt has ended or its controller does not answer."""
        if self._trouble is not None:
            raise RuntimeError(f"the job does not go on: {self._trouble}")

    def stop(self) -> None:
        """Cancel, and leave Ray."""
        self._direction = Direction(goal=RunGoal.CANCEL, num_workers=1, actor="user", reason="benchmark")
        self._wake.set()
        self._has_ended.wait(END_S)
        self._ray.shutdown()

    def _keep_spares(self) -> None:
        """As the reconciler does: one on each node with room, looked at now and then."""
        if time.monotonic() - self._kept_s > VIEW_S:
            self._kept_s = time.monotonic()
            self._spares.keep({node["NodeID"]: int(node["NodeID"] in self._roomy()) for node in self._ray.nodes()})

    def _roomy(self) -> list[str]:
        from ray._private.state import available_resources_per_node

        free: dict[str, dict[str, float]] = available_resources_per_node()
        return [node_id for node_id, amounts in free.items() if amounts.get("CPU", 0.0) >= 1.0]

    def _reconcile(self) -> None:
        """Direct the controller until the attempt has an outcome, acknowledging all that it tells."""
        try:
            while True:
                answer = self._controller.direct.remote(TERM, self._direction, self._acked)
                snapshot: JobSnapshot = self._ray.get(answer, timeout=CALL_S)
                self._acked = _stored(self._acked, snapshot)
                if snapshot.outcome is not None:
                    break
                self._keep_spares()
                self._wake.wait(TICK_S)
                self._wake.clear()
            if snapshot.outcome is not Outcome.CANCELLED:
                self._trouble = snapshot.failure or f"{snapshot.outcome}: {snapshot.detail}"
            self._controller.end.remote(TERM)
            time.sleep(TICK_S)
        except Exception as error:  # a thread of its own: what it was is told by check()
            self._trouble = f"{type(error).__name__}: {error}"
        finally:
            self._has_ended.set()


def _stored(acked: Acknowledged, snapshot: JobSnapshot) -> Acknowledged:
    """What a store that keeps everything would acknowledge."""
    offsets = dict(acked.log_offsets)
    for chunk in snapshot.logs:
        offsets[chunk.worker_id] = max(offsets.get(chunk.worker_id, 0), chunk.offset + len(chunk.data))
    return Acknowledged(
        rounds=max([acked.rounds, *(record.key for record in snapshot.records)]),
        log_offsets=offsets,
        checkpoints=acked.checkpoints | {info.path for info in snapshot.checkpoints},
        timeline=acked.timeline | {row.key for row in snapshot.timeline},
    )


def _launch(folder: Path, audit: Path, setting: Setting) -> Any:
    from workers.control.launch import Launch

    bundle = _bundle()
    file = folder / "bundle.zip"
    file.write_bytes(bundle)
    spec = JobSpec.model_validate(
        {
            "name": "benchmark",
            "entrypoint": "paced_task:build",
            "bundle": "benchmark",
            "config": {"audit": str(audit), "pace_s": setting.pace_s, "hidden": setting.hidden},
            "steps": FOREVER_STEPS,
            "workers": {"min": 1, "max": 2},
            "batch": {"global_size": setting.global_size, "micro_size": setting.global_size},
            "precision": "fp32",
            "checkpoint": {"every_steps": setting.checkpoint_every, "keep": 2},
        }
    )
    storage = Storage(checkpoints=str(folder / "checkpoints"), output=str(folder / "output"))
    scratch = folder / "scratch"
    scratch.mkdir()
    return Launch(
        spec=spec,
        storage=storage,
        scratch=str(scratch),
        bundle_file=str(file),
        bundle_sha256=hashlib.sha256(bundle).hexdigest(),
    )


def _bundle() -> bytes:
    """The task's module alone, under its own name."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.write(TASK_FILE, TASK_FILE.name)
    return data.getvalue()

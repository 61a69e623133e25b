"""The same paced training under Ray Train's elastic TorchTrainer: a driver of its own.

    python -m tests.benchmarks.rival_ray_train '{"address": ..., "audit": ..., ...}'

A line ``1`` or ``2`` on standard input asks for that many workers; its end ends the driver, and its actors with it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

FOREVER_S = 10**9
OTHER_TENANT = "other-tenant"


def train_loop(config: dict[str, Any]) -> None:
    """Runs in each worker: restore, then step for ever; every ``report_every`` steps a checkpoint and a report."""
    import ray.train
    import ray.train.torch
    import torch

    from tests.benchmarks.paced_task import AuditedAdamW, Digits, PacedLoss, make_model

    num_ranks, rank = ray.train.get_context().get_world_size(), ray.train.get_context().get_world_rank()
    loss_of = PacedLoss(config["pace_s"])
    model = make_model(config["hidden"])
    optimizer = AuditedAdamW(model.parameters(), 1e-3, Path(config["audit"]), lambda: loss_of.size)
    step = _restore(model, optimizer)
    wrapped = ray.train.torch.prepare_model(model)
    data, part = Digits(), config["global_size"] // num_ranks
    while True:
        indexes = torch.randint(len(data), (config["global_size"],), generator=torch.Generator().manual_seed(step))
        mine = indexes[rank * part : (rank + 1) * part]
        loss = loss_of(wrapped, (data.features_ND[mine], data.labels_N[mine]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % config["report_every"] == 0:
            _report(step, model, optimizer, is_writer=rank == 0)


def _restore(model: Any, optimizer: Any) -> int:
    import ray.train
    import torch

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _report(step: int, model: Any, optimizer: Any, *, is_writer: bool) -> None:
    import ray.train
    import torch

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if is_writer:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


class OtherTenant:
    """One who came first and takes all CPUs but those for one worker: how Train is told to shrink where nodes stay.

    Train's elastic policy follows what the cluster's AutoscalingCoordinator reserves for it, and nothing else.
    """

    def __init__(self) -> None:
        import ray
        from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordination

        self._get = ray.get
        self._priority = coordination.ResourceRequestPriority.HIGH
        self._coordinator: Any = coordination.get_or_create_autoscaling_coordinator()
        self._num_cpus = int(ray.cluster_resources()["CPU"])
        self.leave(self._num_cpus)

    def leave(self, num_cpus: int) -> None:
        """Leave so many CPUs to Train."""
        bundles = [{"CPU": 1}] * (self._num_cpus - num_cpus)
        ask = self._coordinator.request_resources.remote
        self._get(ask(OTHER_TENANT, bundles, FOREVER_S, priority=self._priority), timeout=30)

    def obey(self) -> None:
        """Follow the numbers on standard input until it ends."""
        for line in sys.stdin:
            self.leave(1 if line.strip() == "1" else self._num_cpus)
        os._exit(0)


def main() -> None:
    """Train until standard input ends."""
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    config = json.loads(sys.argv[1])
    ray.init(address=config["address"], log_to_driver=False)
    threading.Thread(target=OtherTenant().obey, daemon=True).start()
    scaling = ScalingConfig(
        num_workers=(1, 2),
        resources_per_worker={"CPU": 1},
        elastic_resize_monitor_interval_s=config["monitor_s"],
    )
    run = RunConfig(
        name="rival",
        storage_path=config["storage"],
        failure_config=FailureConfig(max_failures=-1),
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    )
    TorchTrainer(train_loop, train_loop_config=config, scaling_config=scaling, run_config=run).fit()


if __name__ == "__main__":
    main()

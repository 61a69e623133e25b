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
NUM_CPUS = 2
STATE_FILE = "state.pt"


def train_loop(config: dict[str, Any]) -> None:
    """Runs in each worker: restore, then step for ever; now and then a checkpoint and a report."""
    import ray.train
    import ray.train.torch

    from tests.benchmarks.rival_training import RivalTraining

    context = ray.train.get_context()
    rank = context.get_world_rank()
    training = RivalTraining(config, rank, context.get_world_size())
    latest = ray.train.get_checkpoint()
    if latest is not None:
        with latest.as_directory() as folder:
            training.restore(Path(folder) / STATE_FILE)

    def report(step: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                training.save(Path(folder) / STATE_FILE)
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)

    training.run(ray.train.torch.prepare_model(training.model), report)


class OtherTenant:
    """One who came first and takes the CPUs that Train is to leave: how it is told to shrink where nodes stay.

    Train's elastic policy follows what the cluster's AutoscalingCoordinator reserves for it, and nothing else.
    """

    def __init__(self) -> None:
        import ray
        from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordination

        self._get = ray.get
        self._priority = coordination.ResourceRequestPriority.HIGH
        self._coordinator: Any = coordination.get_or_create_autoscaling_coordinator()
        self.leave(NUM_CPUS)

    def leave(self, num_cpus: int) -> None:
        """Leave so many CPUs to Train."""
        bundles = [{"CPU": 1}] * (NUM_CPUS - num_cpus)
        ask = self._coordinator.request_resources.remote
        self._get(ask(OTHER_TENANT, bundles, FOREVER_S, priority=self._priority), timeout=30)

    def obey(self) -> None:
        """Follow the numbers on standard input until it ends."""
        for line in sys.stdin:
            self.leave(int(line))
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

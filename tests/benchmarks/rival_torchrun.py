"""The same paced training under torch's own elastic agent: the script that ``torchrun`` starts in each worker.

    torchrun --nnodes=1:2 --rdzv-backend=c10d ... -m tests.benchmarks.rival_torchrun '{"audit": ..., ...}'

As torch's documentation has it: rank 0 writes a checkpoint now and then, and whoever starts loads the latest.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.rival_training import RivalTraining


def main() -> None:
    """Train until the agent ends this process."""
    config = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = RivalTraining(config, rank, dist.get_world_size())
    latest = Path(config["storage"]) / "latest.pt"
    if latest.exists():
        training.restore(latest)

    def checkpoint(step: int) -> None:
        if rank == 0:
            half_done = latest.with_name(f"{step}.pt")
            training.save(half_done)
            os.replace(half_done, latest)

    training.run(DistributedDataParallel(training.model), checkpoint)


if __name__ == "__main__":
    main()

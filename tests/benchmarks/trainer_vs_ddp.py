"""Samples a second of a whole training session over those of a bare torch DDP loop, on two gloo ranks.

Both run in the same two processes, in turns: a block of DDP, a block of a session (polled as a
controller polls), and so on; each pair of blocks gives one ratio. Same model, optimizer, data, batch.

    python -m tests.benchmarks.trainer_vs_ddp [digits|chargpt ...] [--pairs N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from workers.assignment import Assignment, JobKey, Storage
from workers.lr import Decay, LrPlan, LrRule
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.recipes import chargpt, digits
from workers.spec import JobSpec
from workers.status import Acknowledged, Phase
from workers.task import TrainingTask
from workers.training import worker as worker_module
from workers.training.session import Session
from workers.training.setup import equip

NUM_RANKS = 2
POLL_S = 0.2
WARM_UP_STEPS = 10


@dataclass(frozen=True)
class Case:
    """A recipe at a batch size; ``steps`` are those of one block."""

    build: Callable[[], TrainingTask]
    global_batch: int
    steps: int


def _adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr)


def _digits() -> TrainingTask:
    return digits.build({})


def _chargpt() -> TrainingTask:
    return chargpt.build({})


CASES = {"digits": Case(_digits, 128, 400), "chargpt": Case(_chargpt, 32, 40)}


class TcpCalls:
    """``StoreCalls`` over the store by which the two processes found each other."""

    def __init__(self, store: dist.TCPStore) -> None:
        self._store = store

    def set(self, group: str, key: str, value: bytes) -> None:
        self._store.set(f"{group}/{key}", value.hex())

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        self._store.wait([f"{group}/{key}"], timedelta(seconds=timeout_s))
        return bytes.fromhex(self._store.get(f"{group}/{key}").decode())

    def add(self, group: str, key: str, amount: int) -> int:
        return self._store.add(f"{group}/{key}", amount)

    def check(self, group: str, keys: list[str]) -> bool:
        return self._store.check([f"{group}/{key}" for key in keys])


def ddp_seconds(case: Case, rank: int) -> float:
    """Seconds a step of the loop in torch's own DDP tutorial."""
    torch.manual_seed(0)
    task = case.build()
    model = DistributedDataParallel(task.model)
    optimizer = _adamw(model.parameters(), 1e-3)
    sampler: DistributedSampler[object] = DistributedSampler(task.train_data, NUM_RANKS, rank)  # type: ignore[arg-type]  # map-style
    loader = DataLoader(task.train_data, case.global_batch // NUM_RANKS, sampler=sampler, drop_last=True)  # type: ignore[arg-type,var-annotated]  # map-style
    step, started_s = 0, 0.0
    while step < case.steps:
        for batch in loader:
            if step == WARM_UP_STEPS:
                started_s = time.perf_counter()
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            optimizer.step()
            step += 1
            if step == case.steps:
                break
    return (time.perf_counter() - started_s) / (case.steps - WARM_UP_STEPS)


def session_seconds(name: str, case: Case, rank: int, store: dist.TCPStore, number: int) -> float:
    """Seconds a step of a job, from commit to commit, after as many steps of warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec.model_validate(
            {
                "name": name,
                "entrypoint": f"workers.recipes.{name}:build",
                "steps": case.steps,
                "batch": {"global_size": case.global_batch},
                "eval_every_steps": 10 * case.steps,
                "checkpoint": {"every_steps": 10 * case.steps},
            }
        )
        session = Session(_assignment(spec, rank, Path(folder)), TcpCalls(store), None)
        session.start()
        plan = _plan(spec, number)
        status = session.poll(1, plan, Acknowledged(), True)
        while status.phase not in (Phase.DONE, Phase.FAILED):
            if status.stop is not None:
                sys.exit(f"rank {rank} stopped: {status.stop}")
            time.sleep(POLL_S)
            status = session.poll(1, None, Acknowledged(), rank == 0)
        records = session.poll(1, None, Acknowledged(), True).records
        session.stop(1, save=False)
        session.wait_ended(10)
    return (records[-1].time - records[WARM_UP_STEPS - 1].time) / (case.steps - WARM_UP_STEPS)


def _assignment(spec: JobSpec, rank: int, folder: Path) -> Assignment:
    return Assignment(
        key=JobKey(job_id=spec.name, attempt=1),
        worker_id=f"1.{rank}",
        spec=spec,
        storage=Storage(checkpoints=str(folder / "checkpoints"), output=str(folder / "output")),
        scratch=str(folder / "scratch"),
        env={},
    )


def _plan(spec: JobSpec, number: int) -> Plan:
    return Plan(
        id=PlanId(1, 1),
        switch=Switch.NOW,
        generation=number,
        lineage=1,
        source=FreshSource(),
        members=tuple(Member(worker_id=f"1.{rank}", rank=rank) for rank in range(NUM_RANKS)),
        global_batch=spec.batch.global_size,
        lr=LrPlan(lr=1e-3, base_batch=spec.base_batch, rule=LrRule.NONE, warmup_fraction=0.0, decay=Decay.CONSTANT),
        cause=Cause(kind=TimelineKind.START, actor="benchmark", reason=""),
    )


def run(rank: int, name: str, num_pairs: int, port: int) -> None:
    """One rank's blocks, in turns; rank 0 prints."""
    torch.set_num_threads(1)
    case = CASES[name]
    store = dist.TCPStore("127.0.0.1", port, NUM_RANKS, rank == 0)
    dist.init_process_group("gloo", store=dist.PrefixStore("ddp", store), rank=rank, world_size=NUM_RANKS)
    _with_plain_adamw()
    ratios = []
    for number in range(num_pairs + 1):
        dist.barrier()
        theirs_s = ddp_seconds(case, rank)
        dist.barrier()
        ours_s = session_seconds(name, case, rank, store, number + 1)
        if rank == 0 and number:  # the first pair warms both up
            ratios.append(theirs_s / ours_s)
            print(
                f"{name}: DDP {theirs_s * 1e3:.2f} ms a step, session {ours_s * 1e3:.2f} ms, ratio {ratios[-1]:.3f}",
                flush=True,
            )
    if rank == 0:
        low, median, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"{name}: samples/s over bare DDP: median {median:.3f} (from {low:.3f} to {high:.3f}, n={len(ratios)})")
    dist.destroy_process_group()


def _with_plain_adamw() -> None:
    """Sessions would take torch's fused AdamW where the task names none; here both sides take the plain one."""

    def prepare(assignment: Assignment, fetch: object) -> object:
        torch.set_num_threads(1)
        task = CASES[assignment.spec.name].build()
        task.optimizer = _adamw
        return equip(assignment, task, torch.device("cpu"))

    worker_module.prepare = prepare  # type: ignore[assignment]  # the one seam at which a task can be replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args()
    for number, name in enumerate(given.cases):
        mp.spawn(run, (name, given.pairs, 29750 + number), NUM_RANKS)


if __name__ == "__main__":
    main()

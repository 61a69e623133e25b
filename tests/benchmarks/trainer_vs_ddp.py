"""Samples a second of a training session over those of a bare torch DDP loop, on two gloo ranks.

Both train in the same two processes, one step each in turns, so that whatever else the machine does
hits both alike. Same model, optimizer (torch's plain AdamW), data and batch. A session's step is all
of it: the trainer's loop, records, agreement; polls come from the main thread meanwhile. The ratio
of a block is that of the medians of its steps; printed are the median and the range over blocks.

On a GPU one process has both, the rival without DDP, and turns are of ten steps, so that either may run ahead of it.

    python -m tests.benchmarks.trainer_vs_ddp [digits|chargpt|chargpt10m ...] [--gpu] [--blocks N] [--output FILE]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import spread_document
from workers.assignment import Assignment, JobKey, Storage
from workers.lr import Decay, LrPlan, LrRule
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.recipes import chargpt, digits
from workers.spec import JobSpec
from workers.status import Acknowledged, Phase, RoundRecord
from workers.task import TrainingTask
from workers.training import worker as worker_module
from workers.training.batching import to_device
from workers.training.device import pick_device, synchronize
from workers.training.round import Rounds
from workers.training.session import Session
from workers.training.setup import Setup, equip

NUM_RANKS = 2
POLL_S = 0.2
WARM_UP_STEPS = 10
GPU_TURN = 10


@dataclass(frozen=True)
class Case:
    """A recipe at a batch size; ``block`` is how many steps give one ratio."""

    recipe: str
    config: Mapping[str, Any]
    global_batch: int
    block: int

    def build(self) -> TrainingTask:
        """The recipe's task."""
        return {"digits": digits, "chargpt": chargpt}[self.recipe].build(dict(self.config))


def _adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr)


CASES = {
    "digits": Case("digits", {}, 128, 100),
    "chargpt": Case("chargpt", {}, 32, 10),
    "chargpt10m": Case("chargpt", {"dim": 384, "layers": 6, "heads": 6}, 8, 5),
}
"""The gradients of the first two fit into one bucket; those of the last, 43 MB, leave in three."""


class TcpCalls:
    """``StoreCalls`` over the store by which the two processes found each other."""

    def __init__(self, store: dist.TCPStore) -> None:
        self._store = store

    @property
    def address(self) -> str:
        return "127.0.0.1"

    def set(self, group: str, key: str, value: bytes) -> None:
        self._store.set(f"{group}/{key}", value.hex())

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        self._store.wait([f"{group}/{key}"], timedelta(seconds=timeout_s))
        return bytes.fromhex(self._store.get(f"{group}/{key}").decode())

    def add(self, group: str, key: str, amount: int) -> int:
        return self._store.add(f"{group}/{key}", amount)

    def check(self, group: str, keys: list[str]) -> bool:
        return self._store.check([f"{group}/{key}" for key in keys])


class DdpLoop:
    """The loop of torch's own DDP tutorial, a step a call."""

    def __init__(self, case: Case, rank: int, num_ranks: int, device: torch.device) -> None:
        torch.manual_seed(0)
        task = case.build()
        self._loss, self._device = task.loss, device
        task.model.to(device)
        self._model = task.model if num_ranks == 1 else DistributedDataParallel(task.model)
        self._optimizer = _adamw(self._model.parameters(), 1e-3)
        data: Any = task.train_data
        sampler: DistributedSampler[Any] = DistributedSampler(data, num_ranks, rank)
        self._loader = DataLoader(
            data, case.global_batch // num_ranks, sampler=sampler, drop_last=True, pin_memory=device.type == "cuda"
        )
        self._batches = iter(self._loader)

    def step(self) -> None:
        """Draw, compute, exchange, update."""
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self._loader)
            batch = next(self._batches)
        if self._device.type == "cuda":
            batch = to_device(batch, self._device)
        self._optimizer.zero_grad()
        loss = self._loss(self._model, batch)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        self._optimizer.step()


class Turns:
    """Puts as many steps of DDP before every ``turn`` rounds of a trainer, and times both, in seconds a step."""

    def __init__(self, ddp: DdpLoop, turn: int, device: torch.device) -> None:
        self._ddp, self._turn, self._device = ddp, turn, device
        self._num_rounds = 0
        self._resumed_s: float | None = None
        self.theirs_s: list[float] = []
        self.ours_s: list[float] = []

    def around(self, run: Callable[[Rounds, Plan], RoundRecord | None]) -> Callable[[Rounds, Plan], RoundRecord | None]:
        """``run`` with a step of the rival before it; what the trainer does between two rounds counts as its own."""

        def in_turns(rounds: Rounds, plan: Plan) -> RoundRecord | None:
            if self._num_rounds % self._turn == 0:
                self._theirs()
            self._num_rounds += 1
            return run(rounds, plan)

        return in_turns

    def _theirs(self) -> None:
        synchronize(self._device)
        started_s = time.perf_counter()
        if self._resumed_s is not None:
            self.ours_s.append((started_s - self._resumed_s) / self._turn)
        for _ in range(self._turn):
            self._ddp.step()
        synchronize(self._device)
        self._resumed_s = time.perf_counter()
        self.theirs_s.append((self._resumed_s - started_s) / self._turn)


def train(
    name: str,
    case: Case,
    rank: int,
    store: dist.TCPStore,
    num_steps: int,
    num_ranks: int = NUM_RANKS,
    num_gpus: float = 0,
) -> None:
    """A whole job by a session, polled as a controller polls."""
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec.model_validate(
            {
                "name": name,
                "entrypoint": f"workers.recipes.{case.recipe}:build",
                "steps": num_steps,
                "batch": {"global_size": case.global_batch},
                "resources": {"gpus": num_gpus},
                "eval_every_steps": 10 * num_steps,
                "checkpoint": {"every_steps": 10 * num_steps},
            }
        )
        session = Session(assigned(spec, rank, Path(folder)), TcpCalls(store), None)
        session.start()
        status = session.poll(1, planned(spec, num_ranks), Acknowledged(), True)
        while status.phase not in (Phase.DONE, Phase.FAILED):
            if status.stop is not None:
                sys.exit(f"rank {rank} stopped: {status.stop}")
            time.sleep(POLL_S)
            acked = Acknowledged(rounds=max((r.key for r in status.records), default=(0, 0)))
            status = session.poll(1, None, acked, rank == 0)
        if status.failure is not None:
            sys.exit(f"rank {rank} failed: {status.failure}")
        session.stop(1, save=False)
        session.wait_ended(10)


def assigned(spec: JobSpec, rank: int, folder: Path) -> Assignment:
    return Assignment(
        key=JobKey(job_id=spec.name, attempt=1),
        worker_id=f"1.{rank}",
        spec=spec,
        storage=Storage(checkpoints=str(folder / "checkpoints"), output=str(folder / "output")),
        scratch=str(folder / "scratch"),
        env={},
    )


def planned(spec: JobSpec, num_ranks: int = NUM_RANKS) -> Plan:
    return Plan(
        id=PlanId(1, 1),
        switch=Switch.NOW,
        generation=1,
        lineage=1,
        source=FreshSource(),
        members=tuple(Member(worker_id=f"1.{rank}", rank=rank) for rank in range(num_ranks)),
        global_batch=spec.batch.global_size,
        lr=LrPlan(lr=1e-3, base_batch=spec.base_batch, rule=LrRule.NONE, warmup_fraction=0.0, decay=Decay.CONSTANT),
        cause=Cause(kind=TimelineKind.START, actor="benchmark", reason=""),
    )


def run(rank: int, name: str, num_blocks: int, port: int, output: Path | None, num_gpus: int) -> None:
    """One rank's steps, in turns; rank 0 prints."""
    torch.set_num_threads(1)
    case, num_ranks, turn = CASES[name], ranks_of(num_gpus), GPU_TURN if num_gpus else 1
    store = dist.TCPStore("127.0.0.1", port, num_ranks, rank == 0)
    dist.init_process_group("gloo", store=dist.PrefixStore("ddp", store), rank=rank, world_size=num_ranks)
    _with_plain_adamw()
    device = pick_device(num_gpus)
    turns = Turns(DdpLoop(case, rank, num_ranks, device), turn, device)
    Rounds.run = turns.around(Rounds.run)  # type: ignore[method-assign]  # the one place between two rounds
    train(name, case, rank, store, turn * (WARM_UP_STEPS + num_blocks * case.block) + 1, num_ranks, num_gpus)
    if rank == 0:
        _tell(name, case, turns, output)
    dist.destroy_process_group()


def ranks_of(num_gpus: float) -> int:
    """NCCL takes no two ranks on one GPU, and one is all that can be counted on."""
    return 1 if num_gpus == 1 else NUM_RANKS


def _tell(name: str, case: Case, turns: Turns, output: Path | None) -> None:
    ratios = []
    for begin in range(WARM_UP_STEPS, len(turns.ours_s), case.block):
        theirs, ours = (statistics.median(s[begin : begin + case.block]) for s in (turns.theirs_s, turns.ours_s))
        ratios.append(theirs / ours)
        print(f"{name}: DDP {theirs * 1e3:.2f} ms a step, session {ours * 1e3:.2f} ms, ratio {ratios[-1]:.3f}")
    low, high = min(ratios), max(ratios)
    whole = statistics.median(turns.theirs_s[WARM_UP_STEPS:]) / statistics.median(turns.ours_s[WARM_UP_STEPS:])
    print(
        f"{name}: samples/s of a session over a bare loop: median of blocks {statistics.median(ratios):.3f} "
        f"({low:.3f} to {high:.3f}, {len(ratios)} blocks of {case.block} steps), all steps {whole:.3f}"
    )
    times_s = {"ours_s": spread_document(turns.ours_s), "theirs_s": spread_document(turns.theirs_s)}
    figures = {"case": name, "block_steps": case.block, "ratios": ratios, "all_steps": whole, **times_s}
    tell_result(output, "trainer_vs_ddp", ("torch",), figures)


def _with_plain_adamw() -> None:
    """Sessions would take torch's fused AdamW where the task names none; here both sides take the plain one."""

    def prepare(
        assignment: Assignment, fetch_bundle: Callable[[], bytes] | None, set_phase: Callable[[Phase], None]
    ) -> Setup:
        torch.set_num_threads(1)
        task = CASES[assignment.spec.name].build()
        task.optimizer = _adamw
        return equip(assignment, task, pick_device(assignment.spec.resources.gpus))

    worker_module.prepare = prepare  # the one seam at which a task can be replaced


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--gpu", action="store_true", help="one worker on a GPU instead of two on CPUs")
    given = parser.parse_args()
    for number, name in enumerate(given.cases):
        arguments = (name, given.blocks, 29750 + number, given.output, int(given.gpu))
        mp.spawn(run, arguments, ranks_of(int(given.gpu)))


if __name__ == "__main__":
    main()

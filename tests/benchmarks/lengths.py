"""Samples a second of a job whose batches go by length over those of the same job otherwise, on two gloo ranks.

Both sessions train the same model on the same texts (``workers.recipes.textclass``, lengths log-normal) in the same
two processes, one step each in turns, so that whatever else the machine does hits both alike. Ours goes
``by-length`` or is ``packed``. The rival is ``padded``, without lengths: a rank's part of a step to its longest sample,
or with ``--padded-micro`` each so many samples of it to theirs; or goes by length, too. The ratio of a block is that of
the seconds of its steps; printed are the median and the range over blocks, the share of tokens that are no padding,
and how far the losses of the two, step by step, are apart.

    python -m tests.benchmarks.lengths [--ours by-length | packed] [--against padded | by-length] [--global-size N]
        [--max-tokens N] [--padded-micro N] [--dim N] [--blocks N] [--gpus PART] [--output FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import spread_document
from tests.benchmarks.trainer_vs_ddp import NUM_RANKS, POLL_S, TcpCalls, assigned, planned
from workers.assignment import Assignment
from workers.plan import Plan
from workers.recipes import textclass
from workers.spec import JobSpec
from workers.status import Acknowledged, Phase, RoundRecord
from workers.training import worker as worker_module
from workers.training.device import pick_device
from workers.training.round import Rounds
from workers.training.session import Session
from workers.training.setup import Setup, equip

PORTS = {"ours": 29760, "rival": 29761}  # a client that waits lets no other thread through: one a session
BLOCK = 10
BUILD_S = 60.0
WARM_UP_STEPS = 15
"""More than in which a worker tries how many passes are fastest."""
OURS, RIVAL = PORTS
BY_LENGTH, PACKED, PADDED = "by-length", "packed", "padded"


class Turns:
    """Lets two sessions of this process train one step each in turns, and times whole steps: round to round."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._changed = threading.Condition()
        self._turn = OURS
        self._started_s = 0.0
        self.took_s: dict[str, list[float]] = {OURS: [], RIVAL: []}
        self.records: dict[str, list[RoundRecord]] = {OURS: [], RIVAL: []}

    def around(self, run: Callable[[Rounds, Plan], RoundRecord | None]) -> Callable[[Rounds, Plan], RoundRecord | None]:
        """``run`` in its session's turn, which lasts until that session comes for the next step."""

        def in_turns(rounds: Rounds, plan: Plan) -> RoundRecord | None:
            name = rounds._setup.spec.name
            records = self.records[name]
            if records:
                self._pass_on(name)
            with self._changed:
                self._changed.wait_for(lambda: self._turn == name)
            self._started_s = time.perf_counter()
            record = run(rounds, plan)
            assert record is not None
            records.append(record)
            if len(records) == self._num_steps:
                self._pass_on(name)
            return record

        return in_turns

    def _pass_on(self, name: str) -> None:
        self.took_s[name].append(time.perf_counter() - self._started_s)
        with self._changed:
            self._turn = RIVAL if name == OURS else OURS
            self._changed.notify_all()


class Counted:
    """Pads as the recipe does, and counts what of it is padding."""

    def __init__(self) -> None:
        self.tokens = self.padded_tokens = 0

    def pad(self, samples: Sequence[textclass.Sample]) -> textclass.Batch:
        batch = textclass.pad(samples)
        self.tokens += int((batch[0] != textclass.PADDING).sum())
        self.padded_tokens += batch[0].numel()
        return batch

    @property
    def useful(self) -> float:
        return self.tokens / self.padded_tokens


def train(name: str, rank: int, num_steps: int, batch: dict[str, Any], num_gpus: float) -> None:
    """A whole job by a session, polled as a controller polls."""
    store = dist.TCPStore("127.0.0.1", PORTS[name], NUM_RANKS, rank == 0)
    spec = JobSpec.model_validate(
        {
            "name": name,
            "entrypoint": "workers.recipes.textclass:build",
            "steps": num_steps,
            "batch": batch,
            "resources": {"gpus": num_gpus},
            "eval_every_steps": 10 * num_steps,
            "checkpoint": {"every_steps": 10 * num_steps},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        session = Session(assigned(spec, rank, Path(folder)), TcpCalls(store), None)
        session.start()
        status = session.poll(1, planned(spec), Acknowledged(), True)
        while status.phase not in (Phase.DONE, Phase.FAILED):
            if status.stop is not None:
                _end(f"rank {rank} of {name} stopped: {status.stop}")
            time.sleep(POLL_S)
            acked = Acknowledged(rounds=max((r.key for r in status.records), default=(0, 0)))
            status = session.poll(1, None, acked, True)
        if status.failure is not None:
            _end(f"rank {rank} of {name} failed: {status.failure}")
        session.stop(1, save=False)
        session.wait_ended(10)


def _end(why: str) -> None:
    """End this process: the other session waits for a turn that does not come."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def run(rank: int, given: argparse.Namespace) -> None:
    """One rank of both jobs; rank 0 prints."""
    torch.set_num_threads(1)
    num_steps = WARM_UP_STEPS + given.blocks * BLOCK
    turns, counted = Turns(num_steps), Counted()
    Rounds.run = turns.around(Rounds.run)  # type: ignore[method-assign]  # the one place between two rounds
    _replace_tasks({OURS: given.ours, RIVAL: given.against}, given.dim, counted)
    by_length, padded = {"max_tokens": given.max_tokens}, {"micro_size": given.padded_micro or "auto"}
    batches = {OURS: by_length, RIVAL: padded if given.against == PADDED else by_length}
    threads = [
        threading.Thread(
            target=train, args=(name, rank, num_steps, {"global_size": given.global_size, **batch}, given.gpus)
        )
        for name, batch in batches.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if rank == 0:
        _tell(turns, counted, given)


def _tell(turns: Turns, counted: Counted, given: argparse.Namespace) -> None:
    ours_s, rival_s = turns.took_s[OURS], turns.took_s[RIVAL]
    ratios = []
    for begin in range(WARM_UP_STEPS, len(ours_s), BLOCK):
        ours, rival = (sum(took_s[begin : begin + BLOCK]) / BLOCK for took_s in (ours_s, rival_s))
        ratios.append(rival / ours)
        print(f"{given.against} {rival * 1e3:.1f} ms a step, {given.ours} {ours * 1e3:.1f} ms, ratio {ratios[-1]:.2f}")
    useful = [record.values["useful_tokens"] for record in turns.records[OURS]]
    rivals = [record.values.get("useful_tokens", math.nan) for record in turns.records[RIVAL]]
    of_rival = counted.useful if given.against == PADDED else statistics.mean(rivals)
    losses = {name: [record.values["loss"] for record in records] for name, records in turns.records.items()}
    apart = max(abs(a - b) for a, b in zip(losses[OURS], losses[RIVAL], strict=True))
    wanted = "; wanted: 1.8" if given.against == PADDED else ""
    print(
        f"samples/s {given.ours} over {given.against}: median of blocks {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} blocks of {BLOCK} steps of {given.global_size} "
        f"samples){wanted}\n"
        f"useful tokens: {statistics.mean(useful):.1%} a step ({min(useful):.1%} to {max(useful):.1%}) against "
        f"{of_rival:.1%}; wanted: 90 %\n"
        f"loss of the last {BLOCK} steps: {statistics.mean(losses[OURS][-BLOCK:]):.4f} against "
        f"{statistics.mean(losses[RIVAL][-BLOCK:]):.4f}; of one step at most {apart:.1e} apart"
    )
    figures = {
        "ours": given.ours,
        "against": given.against,
        "dim": given.dim,
        "global_size": given.global_size,
        "max_tokens": given.max_tokens,
        "padded_micro": given.padded_micro,
        "ratios": ratios,
        "useful": spread_document(useful),
        "useful_rival": of_rival,
        "largest_loss_difference": apart,
        "ours_s": spread_document(ours_s),
        "rival_s": spread_document(rival_s),
    }
    tell_result(given.output, "lengths", ("torch",), figures)


def _replace_tasks(ways: Mapping[str, str], dim: int, counted: Counted) -> None:
    # Both sessions draw their first weights from the process's one generator, which the first step would seed anew.
    building, built = threading.Lock(), threading.Barrier(len(ways))

    def prepare(
        assignment: Assignment, fetch_bundle: Callable[[], bytes] | None, set_phase: Callable[[Phase], None]
    ) -> Setup:
        with building:
            torch.manual_seed(0)
            way = ways[assignment.spec.name]
            task = textclass.build({"dim": dim, "packed": way == PACKED})
        if way == PADDED:
            task.length, task.collate = None, counted.pad
        built.wait(BUILD_S)
        return equip(assignment, task, pick_device(assignment.spec.resources.gpus))

    worker_module.prepare = prepare  # the one seam at which a task can be replaced


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--ours", choices=(BY_LENGTH, PACKED), default=BY_LENGTH)
    parser.add_argument("--against", choices=(PADDED, BY_LENGTH), default=PADDED)
    parser.add_argument("--dim", type=int, default=textclass.TextOptions().dim)
    parser.add_argument("--global-size", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--padded-micro", type=int)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--gpus", type=float, default=0, help="the part of a GPU that each of two ranks has")
    given = parser.parse_args()
    if given.padded_micro is not None and given.against != PADDED:
        parser.error("--padded-micro is of the rival that is padded")
    mp.spawn(run, (given,), NUM_RANKS)


if __name__ == "__main__":
    main()

"""Samples a second of a job that tells lengths over those of the same job without, on two gloo ranks.

Both sessions train the same model on the same texts (``workers.recipes.textclass``, lengths log-normal) in the same
two processes, one step each in turns, so that whatever else the machine does hits both alike. Without lengths a
rank's part of a step is padded to its longest sample, or with ``--padded-micro`` each so many samples of it to
theirs. The ratio of a block is that of the seconds of its steps; printed are the median and the range over blocks,
the share of tokens that are no padding, and how far the losses of the two, step by step, are apart.

    python -m tests.benchmarks.lengths [--global-size N] [--max-tokens N] [--padded-micro N] [--blocks N]
        [--gpus PART] [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
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

PORTS = {"by-length": 29760, "padded": 29761}  # a client that waits lets no other thread through: one a session
BLOCK = 10
WARM_UP_STEPS = 15
"""More than in which a worker tries how many passes are fastest."""
OURS, PADDED = "by-length", "padded"


class Turns:
    """Lets two sessions of this process train one step each in turns, and times whole steps: round to round."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._changed = threading.Condition()
        self._turn = OURS
        self._started_s = 0.0
        self.took_s: dict[str, list[float]] = {OURS: [], PADDED: []}
        self.records: dict[str, list[RoundRecord]] = {OURS: [], PADDED: []}

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
            self._turn = PADDED if name == OURS else OURS
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
    _without_lengths_where_padded(counted)
    batches = {OURS: {"max_tokens": given.max_tokens}, PADDED: {"micro_size": given.padded_micro or "auto"}}
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
    ours_s, padded_s = turns.took_s[OURS], turns.took_s[PADDED]
    ratios = []
    for begin in range(WARM_UP_STEPS, len(ours_s), BLOCK):
        ours, padded = (sum(took_s[begin : begin + BLOCK]) / BLOCK for took_s in (ours_s, padded_s))
        ratios.append(padded / ours)
        print(f"padded {padded * 1e3:.1f} ms a step, by length {ours * 1e3:.1f} ms, ratio {ratios[-1]:.2f}")
    useful = [record.values["useful_tokens"] for record in turns.records[OURS]]
    losses = {name: [record.values["loss"] for record in records] for name, records in turns.records.items()}
    apart = max(abs(a - b) for a, b in zip(losses[OURS], losses[PADDED], strict=True))
    print(
        f"samples/s by length over padded: median of blocks {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
        f"{max(ratios):.2f}, {len(ratios)} blocks of {BLOCK} steps of {given.global_size} samples); wanted: 1.8\n"
        f"useful tokens: {statistics.mean(useful):.1%} a step ({min(useful):.1%} to {max(useful):.1%}) against "
        f"{counted.tokens / counted.padded_tokens:.1%}; wanted: 90 %\n"
        f"loss of the last {BLOCK} steps: {statistics.mean(losses[OURS][-BLOCK:]):.4f} against "
        f"{statistics.mean(losses[PADDED][-BLOCK:]):.4f}; of one step at most {apart:.1e} apart"
    )
    figures = {
        "global_size": given.global_size,
        "max_tokens": given.max_tokens,
        "padded_micro": given.padded_micro,
        "ratios": ratios,
        "useful": spread_document(useful),
        "useful_padded": counted.tokens / counted.padded_tokens,
        "largest_loss_difference": apart,
        "ours_s": spread_document(ours_s),
        "padded_s": spread_document(padded_s),
    }
    tell_result(given.output, "lengths", ("torch",), figures)


def _without_lengths_where_padded(counted: Counted) -> None:
    building = threading.Lock()  # both sessions draw their first weights from the process's one generator

    def prepare(
        assignment: Assignment, fetch_bundle: Callable[[], bytes] | None, set_phase: Callable[[Phase], None]
    ) -> Setup:
        with building:
            torch.manual_seed(0)
            task = textclass.build({})
        if assignment.spec.name == PADDED:
            task.length, task.collate = None, counted.pad
        return equip(assignment, task, pick_device(assignment.spec.resources.gpus))

    worker_module.prepare = prepare  # the one seam at which a task can be replaced


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--global-size", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--padded-micro", type=int)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--gpus", type=float, default=0, help="the part of a GPU that each of two ranks has")
    mp.spawn(run, (parser.parse_args(),), NUM_RANKS)


if __name__ == "__main__":
    main()

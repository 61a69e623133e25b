"""What shares by speed bring: two workers, one of which computes each micro-batch several times.

    python -m tests.benchmarks.shares [--times 3 | --mixed] [--blocks 8] [--steps 12] [--sample-ms 1] [--output FILE]

Real ranks in processes of their own train one job over gloo. After a stretch with even parts, our advisor finds the
shares from what the workers told of themselves; then even parts and these take turns, a block of steps each, agreed
as plans while it trains, and after each pair the advisor looks again. The rate of a block is the batch over its
median step. The ideal of a block is the sum of both workers' own speeds in it (their samples over their own seconds):
nobody waits, exchanging and updating cost nothing. On a machine that is busy otherwise steps tell of its other work;
so the same is told of the fastest tenth of all steps, and of the workers' own speeds; with ``--sample-ms`` workers
wait instead of computing, which leaves what our side costs. With ``--mixed`` both compute once, the first on a GPU and
the other on a CPU. Gradients that the optimizer saw are compared with those
of one process over the whole batch.
"""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.benchmarks import shares_task
from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import percentile, spread_document
from tests.training.group import TERM, ProcessGroup
from workers.advisors import shares
from workers.assignment import Assignment
from workers.control import sharing
from workers.control.sharing import Sharing
from workers.measures import RankLoad
from workers.plan import Member, Plan, PlanId
from workers.status import Acknowledged, RoundRecord
from workers.training.data import SampleOrder

BATCH = 128
WARM_UP_STEPS = 5
STEPS = 100_000
LOADS, MOST_LOADS = 4, 40
"""Runs of rounds, of every worker, that the advisor is asked with first and last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Steps under one plan: samples a second as trained, and of the workers' own speeds together.

    ``steps_s`` are the seconds of each step, ``speeds`` the own speeds that each worker told of.
    """

    parts: tuple[int, ...]
    rate: float
    ideal: float
    steps_s: list[float]
    speeds: list[list[float]]


class MixedGroup(ProcessGroup):
    """Its first worker has a GPU, the other a CPU."""

    def assignment(self, worker_id: str) -> Assignment:
        assignment = super().assignment(worker_id)
        return assignment if worker_id == "1.0" else assignment.as_placed({})


class Job:
    """The ranks, what they told, and the controller's part as far as shares go."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.workers = group.start(2)
        self.sharing = Sharing()
        self.records: dict[tuple[int, int], RoundRecord] = {}
        self.loads: dict[str, dict[int, RankLoad]] = {i: {} for i in self.workers}
        self._first: Plan | None = None

    def share(self, parts: tuple[int, ...]) -> Plan:
        """Train with these parts from the next boundary on."""
        members = [Member(worker_id=i, rank=n, weight=float(parts[n])) for n, i in enumerate(self.workers)]
        if self._first is None:
            self._first = self._group.train(members)
            return self._first
        return self._group.agree(members, generation=self._first.generation)

    def await_steps(self, plan: Plan, num_steps: int, num_loads: int) -> None:
        """Poll, as a controller does, until so much was told of this plan."""
        stored = Acknowledged(rounds=max(self.records, default=(0, 0)))
        while len(self._of(plan.id)) < num_steps or min(len(self._runs(i, plan.id)) for i in self.workers) < num_loads:
            self._group._tick.wait(0.1)  # a controller's pace; nothing is measured by it
            statuses = [s.poll(TERM, None, stored, True) for s in self._group.sessions.values()]
            self.sharing = sharing.observe(self.sharing, statuses)
            for status in statuses:
                assert status.stop is None, status.stop
                self.records |= {record.key: record for record in status.records}
                self.loads[status.worker_id] |= {load.n: load for load in status.loads}
            stored = Acknowledged(rounds=max(self.records, default=(0, 0)))

    def advice(self, plan: Plan, num_steps: int) -> shares.Change:
        """The first change that is advised; a machine that is busy otherwise may take the advisor some time."""
        for num_loads in range(LOADS, MOST_LOADS):
            self.await_steps(plan, num_steps, num_loads)
            standing = sharing.standing(self.sharing, plan)
            advice = None if standing is None else shares.advise(standing)
            if isinstance(advice, shares.Change):
                return advice
        raise RuntimeError(f"no other parts after {MOST_LOADS} runs of rounds: {advice}; use a quieter machine")

    def review(self, plan: Plan) -> tuple[int, ...]:
        """The parts to go on with, as a controller finds them that looks at them again."""
        standing = sharing.standing(self.sharing, plan)
        advice = None if standing is None else shares.advise(standing)
        return advice.parts if isinstance(advice, shares.Change) else tuple(plan.parts.values())

    def block(self, plan: Plan) -> Block:
        """What the steps under a plan came to."""
        steps_s = [record.values["step_s"] for record in self._of(plan.id)[1:]]
        runs = {i: self._runs(i, plan.id) for i in self.workers}
        speeds = [[run.samples / run.seconds for run in runs[i]] for i in self.workers]
        return Block(
            parts=tuple(runs[i][0].samples for i in self.workers),
            rate=BATCH / statistics.median(steps_s),
            ideal=sum(map(statistics.median, speeds)),
            steps_s=steps_s,
            speeds=speeds,
        )

    def _of(self, plan_id: PlanId) -> list[RoundRecord]:
        return [record for _, record in sorted(self.records.items()) if record.plan_id == plan_id]

    def _runs(self, worker_id: str, plan_id: PlanId) -> list[RankLoad]:
        return [load for _, load in sorted(self.loads[worker_id].items()) if load.plan_id == plan_id]


def gradient_errors(folder: Path, data: shares_task.Sequences) -> list[float]:
    """Relative distance of each gradient that was written down to that of one process over the whole batch."""
    model, order, errors = shares_task.make_model(), SampleOrder(len(data), 0), []
    for file in sorted(folder.glob("step-*.pt")):
        noted, step = torch.load(file, map_location="cpu"), int(file.stem.split("-")[1])
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), noted["parameters"], strict=True):
                parameter.copy_(value)
        drawn = torch.from_numpy(order.indexes(step * BATCH, (step + 1) * BATCH))
        loss = shares_task.plain_loss(model, (data.features_STF[drawn], data.labels_S[drawn]))
        plain = torch.autograd.grad(loss, list(model.parameters()))
        off = math.hypot(*[float((g - p).norm()) for g, p in zip(noted["gradients"], plain, strict=True)])
        errors.append(off / math.hypot(*[float(p.norm()) for p in plain]))
    return errors


def measured(options: Namespace) -> tuple[list[tuple[Block, Block]], str, list[float]]:
    """Pairs of blocks, even parts first; why the shares are what they are; errors of gradients."""
    even, pairs = (BATCH // 2, BATCH // 2), list[tuple[Block, Block]]()
    spec = {"entrypoint": "tests.benchmarks.shares_task:build", "steps": STEPS, "batch": {"global_size": BATCH}}
    spec |= {"optimizer": {"lr": shares_task.LR}, "checkpoint": {"every_steps": STEPS}}
    spec |= {"resources": {"gpus": 0.5, "cpus_instead": 1}} if options.mixed else {}
    times = 1 if options.mixed else options.times
    with (MixedGroup if options.mixed else ProcessGroup)(**spec) as group:
        num_tokens = shares_task.NUM_TOKENS_PACED if options.sample_ms else shares_task.NUM_TOKENS
        setting = {"slow": "1.1", "times": times, "sample_s": options.sample_ms / 1e3, "num_tokens": num_tokens}
        group.spec = group.spec.model_copy(update={"config": {**group.spec.config, **setting}})
        job = Job(group)
        plan = job.share(even)
        first = job.advice(plan, WARM_UP_STEPS + options.steps)
        by_speed = first.parts
        for _ in range(options.blocks):
            blocks = []
            for parts in (even, by_speed):
                job.await_steps(plan := job.share(parts), options.steps, 1)
                blocks.append(job.block(plan))
            pairs.append((blocks[0], blocks[1]))
            gain, reached = blocks[1].rate / blocks[0].rate, blocks[1].rate / blocks[1].ideal
            print(f"{blocks[1].parts}: {gain:.2f} times even parts, {reached:.3f} of ideal", flush=True)
            by_speed = job.review(plan)
        return pairs, first.reason, gradient_errors(group.root / "1.0", shares_task.Sequences(num_tokens))


def undisturbed(blocks: list[Block]) -> tuple[float, float]:
    """Samples a second by the fastest tenth of steps, and the ideal by that of the workers' own speeds."""
    steps_s = [step_s for block in blocks for step_s in block.steps_s]
    speeds = zip(*(block.speeds for block in blocks), strict=True)
    ideal = sum(percentile([speed for told in of_worker for speed in told], 0.9) for of_worker in speeds)
    return BATCH / percentile(steps_s, 0.1), ideal


def main() -> None:
    """Measure, and print figures beside goals."""
    parser = parser_of(__doc__)
    parser.add_argument("--times", type=int, default=3, help="as often the slow worker computes")
    parser.add_argument("--mixed", action="store_true", help="one worker on a GPU, one on a CPU, none slowed down")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12, help="of a block")
    parser.add_argument("--sample-ms", type=float, default=0.0, help="wait so long for a sample instead of computing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    pairs, reason, errors = measured(given)
    gains = [by_speed.rate / even.rate for even, by_speed in pairs]
    reached = [by_speed.rate / by_speed.ideal for _, by_speed in pairs]
    print(reason)
    for what, values, wanted in (
        ("times even parts", gains, "1.9"),
        ("of the ideal", reached, "0.95"),
        ("of the ideal by even parts", [even.rate / even.ideal for even, _ in pairs], "no goal"),
    ):
        low, high = min(values), max(values)
        print(f"{what}: median {statistics.median(values):.3f} ({low:.3f} to {high:.3f}, {len(values)}; {wanted})")
    even_rate, _ = undisturbed([even for even, _ in pairs])
    rate, ideal = undisturbed([by_speed for _, by_speed in pairs])
    print(f"by the fastest tenth: {rate / even_rate:.3f} times even parts, {rate / ideal:.3f} of the ideal")
    print(f"gradient error: at most {max(errors):.1e} over {len(errors)} steps (1e-6)")
    figures = {
        "times": 1 if given.mixed else given.times,
        "mixed": given.mixed,
        "sample_ms": given.sample_ms,
        "parts": pairs[0][1].parts,
        "gradient_error": max(errors),
    }
    figures |= {"fastest_times_even": rate / even_rate, "fastest_of_ideal": rate / ideal}
    spreads = {"times_even": spread_document(gains), "of_ideal": spread_document(reached)}
    tell_result(given.output, "shares", ("torch",), {**figures, **spreads})


if __name__ == "__main__":
    main()

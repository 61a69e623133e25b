"""What measuring the gradient noise costs a training session, against the same session without it.

One session, as a job has it, in two stretches. In the first every second step is measured: the ratio of the medians is
the price of a measured step. In the second, blocks of steps with the measuring as it is and blocks without any take
turns: the ratio of their mean steps is the price to a job (of means, since a median never sees the few measured steps).
Printed are the median over blocks and their range. With one rank a measured step splits its batch in two passes.

    python -m tests.benchmarks.noise_overhead [digits|chargpt ...] [--ranks N] [--gpus N] [--blocks N] [--output FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import spread_document
from tests.benchmarks.trainer_vs_ddp import CASES, train
from workers.plan import Plan
from workers.status import RoundRecord
from workers.training import noise_meter
from workers.training.noise import SPLIT_INTERVAL, NoiseScale
from workers.training.round import Rounds

WARM_UP_STEPS = 40
STEPS = {"digits": (600, 128), "chargpt": (160, 32)}
"""Of the first stretch, and of a block of the second, by case."""


class Schedule:
    """Which rounds are measured in which stretch, in place of the product's own; and how long each round took."""

    def __init__(self, num_alternating: int, block: int) -> None:
        self._end = WARM_UP_STEPS + num_alternating
        self._block = block
        self._is_due, self._splits = NoiseScale.is_due, noise_meter.splits
        self._resumed_s: float | None = None
        self.seconds: list[float] = []
        self.is_measured: list[bool] = []

    def install(self) -> None:
        """Take the product's place."""
        due, splits = self._is_due, self._splits
        NoiseScale.is_due = lambda scale, round: self._may(round, lambda: due(scale, round))  # type: ignore[method-assign]
        noise_meter.splits = lambda round: self._may(round, lambda: splits(round))
        Rounds.run = self._timed(Rounds.run)  # type: ignore[method-assign]  # the one place between two rounds

    def _may(self, round: int, is_due: Callable[[], bool]) -> bool:
        if round <= WARM_UP_STEPS:
            return is_due()
        if round <= self._end:
            return round % 2 == 0
        return self.is_on(round) and is_due()

    def is_on(self, round: int) -> bool:
        """Whether this round of the second stretch is of a block with measuring."""
        return (round - self._end - 1) // self._block % 2 == 0

    def _timed(self, run: Callable[[Rounds, Plan], RoundRecord | None]) -> Callable[[Rounds, Plan], RoundRecord | None]:
        def timed(rounds: Rounds, plan: Plan) -> RoundRecord | None:
            now_s = time.perf_counter()
            if self._resumed_s is not None:
                self.seconds.append(now_s - self._resumed_s)
            self._resumed_s = now_s
            record = run(rounds, plan)
            self.is_measured.append(record is not None and "noise_scale" in record.values)
            return record

        return timed

    def alternating(self, num_blocks: int) -> tuple[list[float], list[float], list[float]]:
        """Seconds of measured and of plain steps of the first stretch, and the ratios of their medians by block."""
        rounds = range(WARM_UP_STEPS, self._end)
        measured = [self.seconds[i] for i in rounds if self.is_measured[i]]
        plain = [self.seconds[i] for i in rounds if not self.is_measured[i]]
        size = min(len(measured), len(plain)) // num_blocks
        cuts = [slice(n * size, (n + 1) * size) for n in range(num_blocks)]
        ratios = [statistics.median(measured[cut]) / statistics.median(plain[cut]) for cut in cuts]
        return measured, plain, ratios

    def in_blocks(self) -> tuple[list[float], float]:
        """The ratio of mean steps of each block with measuring to the block without it after it, and of all."""
        block, seconds = self._block, self.seconds[self._end :]
        means = [statistics.mean(seconds[at : at + block]) for at in range(0, len(seconds) - block + 1, block)]
        ours, theirs = means[0::2], means[1::2]
        return [one / other for one, other in zip(ours, theirs, strict=False)], sum(ours) / sum(theirs[: len(ours)])

    def share(self) -> float:
        """Of the rounds in blocks with measuring, the part that was measured."""
        on = [self.is_measured[i] for i in range(self._end, len(self.seconds)) if self.is_on(i + 1)]
        return sum(on) / len(on)


def run(rank: int, name: str, num_ranks: int, num_gpus: float, num_blocks: int, port: int, output: Path | None) -> None:
    """One rank's session; rank 0 prints."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, num_ranks, rank == 0)
    num_alternating, block = STEPS[name]
    if num_ranks == 1:
        block = max(block, SPLIT_INTERVAL)  # shorter blocks may have no split round in them
    schedule = Schedule(num_alternating, block)
    schedule.install()
    steps = WARM_UP_STEPS + num_alternating + 2 * num_blocks * block + 1
    train(name, CASES[name], rank, store, steps, num_ranks, num_gpus)
    if rank == 0:
        _tell(name, num_ranks, schedule, output)


def _tell(name: str, num_ranks: int, schedule: Schedule, output: Path | None) -> None:
    measured, plain, step_ratios = schedule.alternating(6)
    job_ratios, whole = schedule.in_blocks()
    price = statistics.median(step_ratios) - 1.0
    print(
        f"{name}, {num_ranks} ranks: a measured step {_spread(step_ratios)} of a plain one of "
        f"{statistics.median(plain) * 1e3:.2f} ms; {schedule.share():.2%} of steps are measured, "
        f"which comes to {price * schedule.share():.2%}; a block's mean step {_spread(job_ratios)} "
        f"of one without measuring, all together {whole:.4f}"
    )
    figures = {
        "case": name,
        "num_ranks": num_ranks,
        "measured_step_ratios": step_ratios,
        "measured_share": schedule.share(),
        "price_times_share": price * schedule.share(),
        "block_ratios": job_ratios,
        "all_blocks": whole,
        "measured_s": spread_document(measured),
        "plain_s": spread_document(plain),
    }
    tell_result(output, "noise_overhead", ("torch",), figures)


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} blocks)"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="*", default=list(STEPS), metavar="CASE")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0, help="of each rank: 1, or a part where several share one")
    parser.add_argument("--blocks", type=int, default=10)
    given = parser.parse_args()
    for number, name in enumerate(given.cases):
        mp.spawn(run, (name, given.ranks, given.gpus, given.blocks, 29850 + number, given.output), given.ranks)


if __name__ == "__main__":
    main()

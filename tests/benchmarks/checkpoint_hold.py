"""What a checkpoint costs the training: seconds held for the copy, and steps slowed while it is written.

One process trains chargpt in three sizes with AdamW, on one thread, as one rank of a job does. Stretches of steps
without a writer and the steps that fall into the writing of a checkpoint take turns. The cost of one checkpoint is
the seconds held plus what the steps beside the writing took beyond the quiet median; as a share of a minute it is
what one checkpoint a minute costs. ``--frozen`` freezes the lower half of the blocks, to see what need not be written.

    python -m tests.benchmarks.checkpoint_hold [--sizes 1 10 50] [--saves N] [--frozen] [--device cuda] [--output FILE]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.benchmarks.figures import append_result, circumstances, in_words, spread_document, versions
from workers.recipes import chargpt
from workers.status import CheckpointInfo
from workers.storage_urls import open_storage
from workers.training.checkpoint import CheckpointWriter
from workers.training.state import CheckpointHeader, TrainingState

SHAPES = {1: (128, 5), 10: (320, 8), 50: (640, 10)}  # millions of parameters: width, blocks
CONTEXT, BATCH = 32, 2
QUIET_STEPS = 12
WARM_UP_STEPS = 5
MINUTE_S = 60.0
FLUSH_S = 300.0


@dataclass
class Figures:
    """Seconds, one a checkpoint or one a step."""

    held_s: list[float] = field(default_factory=list)
    written_s: list[float] = field(default_factory=list)
    quiet_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    cost_s: list[float] = field(default_factory=list)
    infos: list[CheckpointInfo] = field(default_factory=list)


class Training:
    """A model, its optimizer and a step; nothing of the loop that would be the same with and without a writer."""

    def __init__(self, millions: int, device: torch.device, is_half_frozen: bool) -> None:
        width, blocks = SHAPES[millions]
        torch.manual_seed(0)
        task = chargpt.build({"dim": width, "layers": blocks, "heads": 4, "context": CONTEXT, "max_bytes": 100_000})
        model = task.model.to(device)
        if is_half_frozen:
            for parameter in list(model.parameters())[: len(list(model.parameters())) // 2]:
                parameter.requires_grad_(False)
        self.num_parameters = sum(p.numel() for p in model.parameters())
        chosen = [p for p in model.parameters() if p.requires_grad]
        self.state = TrainingState(model, torch.optim.AdamW(chosen, lr=1e-4, fused=True), 1e-4)
        self._batch = torch.stack([task.train_data[i] for i in range(BATCH)]).to(device)
        self._loss, self._device = task.loss, device

    def step(self) -> float:
        """One update; the answer is its seconds."""
        started_s = time.perf_counter()
        self.state.optimizer.zero_grad()
        loss = self._loss(self.state.model, self._batch)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        self.state.optimizer.step()
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        self.state.round += 1
        return time.perf_counter() - started_s

    def header(self, held_s: float) -> CheckpointHeader:
        round = self.state.round
        return CheckpointHeader(
            attempt=1,
            lineage=1,
            round=round,
            generation=1,
            step=round,
            cursor=round,
            metric=None,
            is_final=False,
            held_s=held_s,
        )


def measure(training: Training, writer: CheckpointWriter, num_saves: int) -> Figures:
    """Quiet and busy stretches in turns; the first save is told apart."""
    figures = Figures()
    training.step()
    writer.prepare(training.state.forms())  # as a trainer does after its first step
    for _ in range(WARM_UP_STEPS):
        training.step()
    writer.flush(FLUSH_S)
    for _ in range(num_saves):
        quiet_s = [training.step() for _ in range(QUIET_STEPS)]
        started_s = time.perf_counter()
        staging = writer.staging()
        snapshot = training.state.snapshot(staging)
        held_s = time.perf_counter() - started_s
        writer.save(snapshot, training.header(held_s), staging)
        busy_s = _while_writing(training.step, writer, figures)
        figures.held_s.append(held_s)
        figures.written_s.append(time.perf_counter() - started_s - held_s)
        figures.quiet_s += quiet_s
        figures.busy_s += busy_s
        quiet_median_s = statistics.median(quiet_s)
        figures.cost_s.append(held_s + max(0.0, sum(busy_s) - quiet_median_s * len(busy_s)))
    return figures


def _while_writing(step: Callable[[], float], writer: CheckpointWriter, figures: Figures) -> list[float]:
    busy_s = []
    while not (done := writer.finished()):
        busy_s.append(step())
        assert not writer.failed()
    figures.infos += done
    writer.flush(FLUSH_S)  # what is left is the removal of superfluous ones
    return busy_s


def tell(millions: int, training: Training, figures: Figures, output: Path | None) -> None:
    """Print one size's figures, and add them to the results."""
    first, later = figures.held_s[0], figures.held_s[1:]
    slowdown = statistics.median(figures.busy_s) / statistics.median(figures.quiet_s)
    held_share, cost_share = (statistics.median(values[1:]) / MINUTE_S for values in (figures.held_s, figures.cost_s))
    last = figures.infos[-1]
    print(f"{millions} M ({training.num_parameters:,} parameters, {last.size_bytes / 1e6:.0f} MB of state)")
    print(f"  held: first {first * 1e3:.0f} ms, then {in_words(later, 'ms', 1e3)}")
    print(f"  step: quiet {in_words(figures.quiet_s, 'ms', 1e3)}")
    print(f"  step beside the writing: {in_words(figures.busy_s, 'ms', 1e3)}; medians {slowdown:.2f} times")
    print(f"  written in {in_words(figures.written_s, 's')}; bytes {[info.written_bytes for info in figures.infos]}")
    print(
        f"  one a minute: held {held_share:.3%} of the time (first {first / MINUTE_S:.2%}), "
        f"held and slowed {cost_share:.3%}; wanted: held <= 2 %"
    )
    values = {name: spread_document(getattr(figures, name)) for name in ("quiet_s", "busy_s", "written_s", "cost_s")}
    append_result(
        output,
        "checkpoint_hold",
        {
            **circumstances(),
            "versions": versions("torch"),
            "millions": millions,
            "first_held_s": first,
            "held_s": spread_document(later),
            "written_bytes": [info.written_bytes for info in figures.infos],
            **values,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--saves", type=int, default=8, help="checkpoints a size, at least 2")
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print({**circumstances(), **versions("torch")})
    for millions in given.sizes:
        with tempfile.TemporaryDirectory() as folder:
            training = Training(millions, torch.device(given.device), given.frozen)
            writer = CheckpointWriter(open_storage(folder), 2, None, "max")
            tell(millions, training, measure(training, writer, max(2, given.saves)), given.output)


if __name__ == "__main__":
    main()

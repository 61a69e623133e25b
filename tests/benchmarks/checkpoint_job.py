"""How long a checkpoint holds a job of two ranks: from the end of the step before it to the next one, all told.

Real ranks in processes of their own train chargpt of 10 million parameters with AdamW over gloo, once with gradients as
they are and once as int8, which leaves residuals that a checkpoint gathers. A hold is what lies between two steps where
a checkpoint is taken, less the median of what lies between others: the hash of the state and its comparison, the
gathering, the copy. Its parts are told too, and what the checkpoints say of themselves. As a share of a minute it is
what one checkpoint a minute costs; that steps are slower while it is written, ``checkpoint_hold`` measures.

    python -m tests.benchmarks.checkpoint_job [none int8] [--saves N] [--output FILE]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.benchmarks.checkpoint_hold import CONTEXT, MINUTE_S, SHAPES
from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import in_words, spread_document
from tests.benchmarks.trainer_vs_ddp import NUM_RANKS, POLL_S, TcpCalls, assigned, planned
from workers.exchange_options import filled
from workers.plan import Exchange
from workers.spec import JobSpec
from workers.status import Acknowledged, CheckpointInfo, Phase
from workers.training.owed import Owed
from workers.training.replicas import Replicas
from workers.training.round import Rounds
from workers.training.session import Session
from workers.training.state import TrainingState

EVERY_STEPS = 8
"""Steps from one checkpoint to the next, by the end of which the writing of the first is over."""

PARTS = {"hash": (Replicas, "check"), "gathering": (Owed, "total"), "copy": (TrainingState, "snapshot")}


class Between:
    """Times what a rank does between two rounds, and the parts of it where that is a checkpoint.

    Of each gap: its seconds, the training thread's own processor time in it, and whether a checkpoint was taken.
    """

    def __init__(self) -> None:
        self.gaps: list[tuple[float, float, bool]] = []
        self.parts_s: dict[str, list[float]] = {name: [] for name in PARTS}
        self._now_s: dict[str, float] = {}
        self._ended: tuple[float, float] | None = None

    def install(self) -> None:
        """Take the place of what is timed, in this process."""
        for name, (owner, method) in PARTS.items():
            setattr(owner, method, self._timed(name, getattr(owner, method)))
        run: Callable[..., Any] = Rounds.run

        def between(*given: Any) -> Any:
            self._note()
            try:
                return run(*given)
            finally:
                self._ended = (time.perf_counter(), time.thread_time())

        Rounds.run = between  # type: ignore[method-assign]  # the one place between two rounds

    def _note(self) -> None:
        parts_s, self._now_s = self._now_s, {}
        if self._ended is None:
            return
        passed_s, worked_s = time.perf_counter() - self._ended[0], time.thread_time() - self._ended[1]
        self.gaps.append((passed_s, worked_s, "gathering" in parts_s))
        if "gathering" in parts_s:
            for name, seconds in parts_s.items():
                self.parts_s[name].append(seconds)

    def _timed(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            started_s = time.perf_counter()
            result = act(*given, **named)
            self._now_s[name] = self._now_s.get(name, 0.0) + time.perf_counter() - started_s
            return result

        return timed

    def held_s(self, which: int) -> list[float]:
        """Of each checkpoint: the seconds (0), or the processor time of the training thread in them (1)."""
        quiet_s = statistics.median(gap[which] for gap in self.gaps if not gap[2])
        return [gap[which] - quiet_s for gap in self.gaps if gap[2]]


def run(rank: int, scheme: str, num_saves: int, port: int, output: Path | None) -> None:
    """One rank's job; rank 0, which saves, prints."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, NUM_RANKS, rank == 0)
    between = Between()
    between.install()
    infos = _train(scheme, rank, store, num_saves)
    if rank == 0:
        _tell(scheme, between, infos, output)


def _train(scheme: str, rank: int, store: dist.TCPStore, num_saves: int) -> list[CheckpointInfo]:
    width, blocks = SHAPES[10]
    document = {
        "name": "saved",
        "entrypoint": "workers.recipes.chargpt:build",
        "config": {"dim": width, "layers": blocks, "heads": 4, "context": CONTEXT, "max_bytes": 100_000},
        "steps": EVERY_STEPS * num_saves + EVERY_STEPS // 2,
        "batch": {"global_size": 4},
        "eval_every_steps": 1_000_000,
        "checkpoint": {"every_steps": EVERY_STEPS},
    }
    spec = JobSpec.model_validate(document)
    plan = replace(planned(spec), exchange=Exchange(scheme=scheme, options=filled(scheme, {})))
    with tempfile.TemporaryDirectory() as folder:
        session = Session(assigned(spec, rank, Path(folder)), TcpCalls(store), None)
        session.start()
        status = session.poll(1, plan, Acknowledged(), True)
        found: dict[str, CheckpointInfo] = {}
        while status.phase not in (Phase.DONE, Phase.FAILED):
            assert status.stop is None, status.stop
            time.sleep(POLL_S)
            acked = Acknowledged(rounds=max((r.key for r in status.records), default=(0, 0)))
            status = session.poll(1, None, acked, rank == 0)
            found |= {info.path: info for info in status.checkpoints if not info.is_final}
        assert status.failure is None, status.failure
        session.stop(1, save=False)
        session.wait_ended(10)
        return list(found.values())


def _tell(scheme: str, between: Between, infos: list[CheckpointInfo], output: Path | None) -> None:
    held_s, worked_s, size = between.held_s(0), between.held_s(1), infos[-1].size_bytes
    print(f"{scheme}: {len(infos)} checkpoints of {size / 1e6:.0f} MB, of {len(held_s)} that were taken")
    print(f"  held: {in_words(held_s, 'ms', 1e3)}, first {held_s[0] * 1e3:.0f} ms")
    print(f"  processor time of the training thread in it: {in_words(worked_s, 'ms', 1e3)}")
    for name, seconds in between.parts_s.items():
        print(f"  {name}: {in_words(seconds, 'ms', 1e3)}")
    print(f"  told by themselves: {in_words([info.held_s for info in infos], 'ms', 1e3)}")
    print(f"  one a minute: {statistics.median(held_s) / MINUTE_S:.2%}, at most {max(held_s) / MINUTE_S:.2%}")
    figures = {"held_s": held_s, "worked_s": worked_s, "told_s": [info.held_s for info in infos], **between.parts_s}
    spreads = {name: spread_document(seconds) for name, seconds in figures.items()}
    tell_result(output, "checkpoint_job", ["torch"], {"scheme": scheme, "size_bytes": size, **spreads})


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("schemes", nargs="*", default=["none", "int8"])
    parser.add_argument("--saves", type=int, default=10, help="checkpoints a scheme")
    given = parser.parse_args()
    for number, scheme in enumerate(given.schemes):
        mp.spawn(run, (scheme, given.saves, 29870 + number, given.output), NUM_RANKS)


if __name__ == "__main__":
    main()

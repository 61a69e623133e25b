"""Samples a second with ``micro_size: auto`` over those of the best fixed size, at two memory limits.

    python -m tests.benchmarks.micro_sizes [digits|cnn|chargpt ...] [--gpu] [--blocks N] [--output FILE]

One worker a size, each a process of its own under ``resources.memory_bytes``, all training the same job at the same
time: blocks of rounds in turns. The tight limit leaves a third of the memory that a whole batch in one pass takes.
``auto`` has to find its size in its first blocks, which are told by themselves.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.benchmarks.command import parser_of, tell_result
from workers.assignment import Assignment, JobKey, Storage
from workers.lr import Decay, LrPlan, LrRule
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.spec import JobSpec
from workers.status import Acknowledged, Phase, RoundRecord, WorkerStatus

SPAWN = multiprocessing.get_context("spawn")
POLL_S = 0.2
WAIT_S = 300.0
BLOCK_S = 0.5
NUM_SETTLING = 40
ROOMY = 1.5
TIGHT = 1 / 3


@dataclass(frozen=True)
class Case:
    """A recipe at a batch size, and the sizes that ``auto`` is compared with."""

    recipe: str
    config: Mapping[str, Any]
    global_batch: int
    sizes: Sequence[int]


CASES = {
    "digits": Case("digits", {"hidden": 1024}, 4096, (8, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
    "cnn": Case("digits", {"model": "cnn", "channels": 16}, 512, (4, 8, 16, 32, 64, 128, 256, 512)),
    "chargpt": Case("chargpt", {}, 128, (2, 4, 8, 16, 32, 64, 128)),
}


class Contender:
    """A worker in a process of its own, which trains only while it is told to; sizes that do not fit fall out."""

    def __init__(self, case: Case, micro_size: int | str, limit_bytes: int | None, num_gpus: int) -> None:
        self.micro_size = micro_size
        self.samples_per_s: list[float] = []
        self.told: dict[str, Any] = {}
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(
            target=_serve, args=(theirs, case, micro_size, limit_bytes, num_gpus), daemon=True
        )
        self._process.start()
        theirs.close()

    def rounds(self, num_rounds: int) -> float | None:
        """Seconds of so many rounds, None where this size has failed."""
        if self.told:
            return None
        try:
            self._pipe.send(num_rounds)
            if not self._pipe.poll(WAIT_S):
                raise TimeoutError(f"micro_size={self.micro_size}: no word for {WAIT_S:.0f} s")
            told = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            return None
        if isinstance(told, dict):
            self.told = told
            return None
        return float(told)

    def end(self) -> dict[str, Any]:
        """What it tells at its end: the size, what it held at most, and whether memory ran out."""
        if not self.told:
            self.rounds(0)
        self._process.terminate()
        self._process.join(WAIT_S)
        return self.told


@dataclass
class Turns:
    """Holds a worker between two rounds until its turn comes."""

    pipe: Connection
    left: int = 0
    began_s: float | None = None
    is_over: bool = field(default=False)
    num_skipped: int = 0
    num_begun_again: int = 0

    def around(self, run: Callable[..., RoundRecord | None]) -> Callable[..., RoundRecord | None]:
        def in_turns(rounds: Any, plan: Plan) -> RoundRecord | None:
            while self.left == 0 and not self.is_over:
                if self.began_s is not None:
                    self.pipe.send(time.perf_counter() - self.began_s)
                self.left = self.pipe.recv()
                self.is_over = self.left == 0
                self.began_s = time.perf_counter()
            self.left -= 1
            return run(rounds, plan) if self.is_over else self._counted(run, rounds, plan)

        return in_turns

    def _counted(self, run: Callable[..., RoundRecord | None], rounds: Any, plan: Plan) -> RoundRecord | None:
        self.num_begun_again += 1
        record = run(rounds, plan)
        if record is not None:
            self.num_begun_again -= 1
            self.num_skipped += record.is_skipped
        return record


def _serve(pipe: Connection, case: Case, micro_size: int | str, limit_bytes: int | None, num_gpus: int) -> None:
    from tests.training.fake_store import FakeStore
    from workers.training import footprint
    from workers.training.device import pick_device
    from workers.training.round import Rounds
    from workers.training.session import Session

    turns = Turns(pipe)
    Rounds.run = turns.around(Rounds.run)  # type: ignore[method-assign]  # the one place between two rounds
    with tempfile.TemporaryDirectory() as folder:
        spec = _spec(case, micro_size, limit_bytes, num_gpus)
        session = Session(_assignment(spec, Path(folder)), FakeStore(), None)
        session.start()
        status = session.poll(1, _plan(spec), Acknowledged(), False)
        while not turns.is_over and status.phase is not Phase.FAILED:
            time.sleep(POLL_S)
            status = session.poll(1, None, Acknowledged(), False)
        pipe.send(_told(status, turns, footprint.peak_bytes(pick_device(num_gpus))))
        time.sleep(WAIT_S)  # until it is ended: its training thread may stand in a turn


def _told(status: WorkerStatus, turns: Turns, peak: int) -> dict[str, Any]:
    return {
        "failure": None if status.failure is None else status.failure.message,
        "micro_size": status.micro_size,
        "changes": [(c.before, c.after, c.reason) for c in status.micro_changes],
        "peak_bytes": peak,
        "rounds": status.round,
        "num_skipped": turns.num_skipped,
        "num_begun_again": turns.num_begun_again,
        "num_samples": status.cursor,
    }


def _spec(case: Case, micro_size: int | str, limit_bytes: int | None, num_gpus: int) -> JobSpec:
    far = 10**7
    return JobSpec.model_validate(
        {
            "name": "micro-sizes",
            "entrypoint": f"workers.recipes.{case.recipe}:build",
            "config": dict(case.config),
            "steps": far,
            "batch": {"global_size": case.global_batch, "micro_size": micro_size},
            "resources": {"memory_bytes": limit_bytes, "gpus": num_gpus},
            "eval_every_steps": far,
            "checkpoint": {"every_steps": far},
            "precision": "fp32",
        }
    )


def _assignment(spec: JobSpec, folder: Path) -> Assignment:
    return Assignment(
        key=JobKey(job_id=spec.name, attempt=1),
        worker_id="1.0",
        spec=spec,
        storage=Storage(checkpoints=str(folder / "checkpoints"), output=str(folder / "output")),
        scratch=str(folder / "scratch"),
        env={},
    )


def _plan(spec: JobSpec) -> Plan:
    return Plan(
        id=PlanId(1, 1),
        switch=Switch.NOW,
        generation=1,
        lineage=1,
        source=FreshSource(),
        members=(Member(worker_id="1.0", rank=0),),
        global_batch=spec.batch.global_size,
        lr=LrPlan(lr=1e-4, base_batch=spec.base_batch, rule=LrRule.NONE, warmup_fraction=0.0, decay=Decay.CONSTANT),
        cause=Cause(kind=TimelineKind.START, actor="benchmark", reason=""),
    )


def _limits(case: Case, num_gpus: int) -> dict[str, int]:
    """A roomy and a tight limit, from what the smallest size and a whole batch in one pass hold without any."""
    least, most = (_held(case, size, num_gpus) for size in (case.sizes[0], case.global_batch))
    return {"roomy": least + round(ROOMY * (most - least)), "tight": least + round(TIGHT * (most - least))}


def _held(case: Case, micro_size: int, num_gpus: int) -> int:
    probe = Contender(case, micro_size, None, num_gpus)
    probe.rounds(4)
    return int(probe.end()["peak_bytes"])


def compare(name: str, label: str, limit_bytes: int, num_gpus: int, num_blocks: int, output: Path | None) -> None:
    """All sizes under one limit, in turns."""
    case = CASES[name]
    contenders = [Contender(case, size, limit_bytes, num_gpus) for size in ("auto", *case.sizes)]
    auto = contenders[0]
    settling_s = auto.rounds(NUM_SETTLING)
    alive = []
    for contender in contenders:
        seconds = contender.rounds(3)
        if seconds is not None:
            alive.append((contender, max(1, round(BLOCK_S / (seconds / 3)))))
    for _ in range(num_blocks):
        for contender, num_rounds in alive:
            seconds = contender.rounds(num_rounds)
            if seconds is not None:
                contender.samples_per_s.append(num_rounds * case.global_batch / seconds)
    _tell(name, label, limit_bytes, settling_s, [(c, c.end()) for c in contenders], output)


def _tell(
    name: str,
    label: str,
    limit_bytes: int,
    settling_s: float | None,
    told: Sequence[tuple[Contender, dict[str, Any]]],
    output: Path | None,
) -> None:
    (auto, about), *fixed = told
    assert auto.samples_per_s, f"auto failed: {about}"
    fitting = [c for c, _ in fixed if len(c.samples_per_s) == len(auto.samples_per_s)]  # others ran out of memory
    speeds = {c.micro_size: statistics.median(c.samples_per_s) for c in fitting}
    best = max(speeds, key=lambda size: speeds[size])
    rival = next(c for c in fitting if c.micro_size == best)
    ratios = sorted(ours / theirs for ours, theirs in zip(auto.samples_per_s, rival.samples_per_s, strict=True))
    whole = statistics.median(auto.samples_per_s) / speeds[best]
    print(f"{name}, {label} ({limit_bytes / 2**20:.0f} MiB): samples a second by fixed size:")
    print("  " + ", ".join(f"{size}: {speed:,.0f}" for size, speed in speeds.items()))
    failed = [c.micro_size for c, _ in fixed if c not in fitting]
    print(f"  did not fit: {failed or 'none'}; auto: {about['changes']}")
    fastest_s = NUM_SETTLING * CASES[name].global_batch / speeds[best]
    print(
        f"  auto {statistics.median(auto.samples_per_s):,.0f} over the best fixed ({best}): {whole:.3f} "
        f"(blocks {ratios[0]:.3f} to {ratios[-1]:.3f}, n={len(ratios)}); first {NUM_SETTLING} rounds {settling_s:.2f} "
        f"for {fastest_s:.2f} s at the best size"
    )
    print(_lost_in_words(about, CASES[name].global_batch))
    figures = {
        "case": name,
        "limit": label,
        "limit_bytes": limit_bytes,
        "speeds": speeds,
        "failed": failed,
        "auto": auto.samples_per_s,
        "ratio": whole,
        "ratios": ratios,
        "settling_s": settling_s,
        **about,
    }
    tell_result(output, "micro_sizes", ("torch",), figures)


def _lost_in_words(about: Mapping[str, Any], global_batch: int) -> str:
    return (
        f"  of {about['rounds']} rounds {about['num_skipped']} were passed over, {about['num_begun_again']} begun "
        f"again; {about['num_samples']} samples drawn of {about['rounds'] * global_batch}"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--gpu", action="store_true", help="all on one GPU, instead of on the CPU")
    given = parser.parse_args()
    for name in given.cases:
        for label, limit_bytes in _limits(CASES[name], int(given.gpu)).items():
            compare(name, label, limit_bytes, int(given.gpu), given.blocks, given.output)


if __name__ == "__main__":
    main()

"""Samples a second where a worker chooses who reads samples, over those where its training thread always does.

    python -m tests.benchmarks.loaders [sleeping|burning|chargpt|digits ...] [--blocks N] [--output FILE]

Two workers, each a process of its own, train the same job in turns: blocks of rounds, and before each block some that
are not counted, so that what was read ahead during the other's turn is used up. The choice has to be made in the
first rounds, which are told by themselves. Reading is cheap in the last two cases, in which nothing must get slower.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.micro_sizes import Turns, _assignment, _plan
from workers.spec import JobSpec
from workers.status import Acknowledged, Phase

SPAWN = multiprocessing.get_context("spawn")
POLL_S = 0.2
WAIT_S = 300.0
NUM_SETTLING, NUM_UNCOUNTED = 60, 20
BLOCK_S = 2.0
INLINE, CHOSEN = "inline", "chosen"


@dataclass(frozen=True)
class Case:
    """An entrypoint with its config at a batch size."""

    entrypoint: str
    config: Mapping[str, Any]
    global_batch: int


CASES = {
    "sleeping": Case("tests.benchmarks.loaders_task:build", {"sleep_s": 2e-3, "burn_s": 0.0}, 32),
    "burning": Case("tests.benchmarks.loaders_task:build", {"sleep_s": 0.0, "burn_s": 1e-3}, 32),
    "chargpt": Case("workers.recipes.chargpt:build", {}, 32),
    "digits": Case("workers.recipes.digits:build", {}, 128),
}


class Contender:
    """A worker in a process of its own, which trains only while it is told to."""

    def __init__(self, case: Case, who: str) -> None:
        self.samples_per_s: list[float] = []
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(theirs, case, who))
        self._process.start()
        theirs.close()

    def rounds(self, num_rounds: int) -> float:
        """Seconds of so many rounds."""
        self._pipe.send(num_rounds)
        return float(self._told())

    def end(self) -> Any:
        """What it tells of who read."""
        self._pipe.send(0)
        changes = self._told()
        self._process.terminate()
        self._process.join(WAIT_S)
        return changes

    def _told(self) -> Any:
        if not self._pipe.poll(WAIT_S):
            raise TimeoutError(f"no word for {WAIT_S:.0f} s")
        return self._pipe.recv()


def _serve(pipe: Connection, case: Case, who: str) -> None:
    from tests.training.fake_store import FakeStore
    from workers.training import loader_choice
    from workers.training.round import Rounds
    from workers.training.session import Session

    if who == INLINE:
        loader_choice.WORTH = 2.0  # no share of a round is worth trying anything
    turns = Turns(pipe)
    Rounds.run = turns.around(Rounds.run)  # type: ignore[method-assign]  # the one place between two rounds
    far = 10**7
    document = {
        "name": "loaders",
        "entrypoint": case.entrypoint,
        "config": dict(case.config),
        "steps": far,
        "batch": {"global_size": case.global_batch, "micro_size": case.global_batch},
        "eval_every_steps": far,
        "checkpoint": {"every_steps": far},
        "precision": "fp32",
    }
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec.model_validate(document)
        session = Session(_assignment(spec, Path(folder)), FakeStore(), None)
        session.start()
        status = session.poll(1, _plan(spec), Acknowledged(), False)
        while not turns.is_over and status.phase is not Phase.FAILED:
            time.sleep(POLL_S)
            status = session.poll(1, None, Acknowledged(), False)
        pipe.send([(c.before, c.after, c.reason) for c in status.loader_changes])
        time.sleep(WAIT_S)  # until it is ended: its training thread stands in a turn


def compare(name: str, given: argparse.Namespace) -> None:
    """Both in turns."""
    case = CASES[name]
    contenders = {who: Contender(case, who) for who in (INLINE, CHOSEN)}
    settling = {who: contender.rounds(NUM_SETTLING) / NUM_SETTLING for who, contender in contenders.items()}
    num_rounds = {who: max(20, round(BLOCK_S / seconds)) for who, seconds in settling.items()}
    for _ in range(given.blocks):
        for who, contender in contenders.items():
            contender.rounds(NUM_UNCOUNTED)
            seconds = contender.rounds(num_rounds[who])
            contender.samples_per_s.append(num_rounds[who] * case.global_batch / seconds)
    _tell(name, contenders, settling, given.output)


def _tell(name: str, contenders: Mapping[str, Contender], settling: Mapping[str, float], output: Path | None) -> None:
    speeds = {who: contender.samples_per_s for who, contender in contenders.items()}
    changes = {who: contender.end() for who, contender in contenders.items()}
    ratios = [ours / theirs for ours, theirs in zip(speeds[CHOSEN], speeds[INLINE], strict=True)]
    print(
        f"{name}: inline {_spread(speeds[INLINE], '.0f')}, chosen {_spread(speeds[CHOSEN], '.0f')} samples a second, "
        f"ratio {_spread(ratios, '.2f')}, {len(ratios)} blocks; a round of the first {NUM_SETTLING}: "
        f"{1e3 * settling[INLINE]:.1f} and {1e3 * settling[CHOSEN]:.1f} ms"
    )
    for _, after, reason in changes[CHOSEN]:
        print(f"  {after}: {reason}")
    figures = {"case": name, "speeds": speeds, "ratios": ratios, "changes": changes[CHOSEN], "settling_s": settling}
    tell_result(output, "loaders", ("torch",), figures)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--blocks", type=int, default=5)
    given = parser.parse_args()
    for name in given.cases:
        compare(name, given)


if __name__ == "__main__":
    main()

"""SIGKILL of the service at random moments on a real Ray: ``python -m tests.benchmarks.kills --rounds 1000``.

In one of ten rounds it is `serve` itself, twice. Works in portions, each with a Ray and a home of its own, its jobs
brought to their end and the oracle asked. Each appends a line to ``--output``; a later call goes on until the file
counts ``--rounds`` of this code in all. ``--limit-s`` begins no portion that would not end within that time. Ends with
1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from service.supervise.home import Home
from service.supervise.ray_record import read_ray_record
from tests.benchmarks.figures import append_result, circumstances, code_digest, versions
from tests.benchmarks.own_ray import own_ray

KIND = "kills"
NUM_CPUS = 3


def portion(rounds: int, seed: int) -> dict[str, Any]:
    """One portion's line."""
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        with own_ray(folder, NUM_CPUS) as head:
            os.environ.update(head.variables)
            # Only now, with Ray's environment set, may anything import Ray.
            from tests.faults.ray_portion import run_portion

            record = read_ray_record(Home(folder / "home").ray_file)
            assert record is not None
            done = run_portion(folder, record, rounds=rounds, seed=seed)
    return {"seed": seed, "is_fine": done.is_fine, **asdict(done)}


def portion_apart(rounds: int, seed: int) -> dict[str, Any]:
    """The same in a process of its own: Ray reads the token that it shows once a process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as apart:
        return apart.submit(portion, rounds, seed).result()


def earlier(file: Path | None) -> list[dict[str, Any]]:
    """The portions of this code that a file of results holds already."""
    if file is None or not file.exists():
        return []
    lines, code = map(json.loads, file.read_text().splitlines()), code_digest()
    return [line for line in lines if line["kind"] == KIND and line.get("code") == code]


def summary(lines: list[dict[str, Any]]) -> str:
    """The counts of all portions."""

    def count(words: str) -> int:
        return sum(words in finding for line in lines for finding in line["findings"])

    rounds, accepted = (sum(line[name] for line in lines) for name in ("rounds", "accepted"))
    orphans, wrong = (sum(len(line[name]) for line in lines) for name in ("orphans", "wrong"))
    findings = sum(len(line["findings"]) for line in lines)
    return (
        f"{rounds} rounds of kills, {accepted} accepted jobs, {sum(line['steps'] for line in lines)} optimizer steps: "
        f"{count('was lost')} jobs lost, {count('twice at once')} run twice at once, {orphans} orphans after 60 s, "
        f"{findings} findings of the oracle in all, {wrong} wrong answers or failed jobs"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--portion", type=int, default=50, help="rounds of one portion")
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    begun_s = last_s = time.monotonic()
    longest_s = 0.0
    lines = earlier(options.output)
    while (left := options.rounds - sum(line["rounds"] for line in lines)) > 0:
        if last_s - begun_s + longest_s > options.limit_s:
            break
        line = portion_apart(min(options.portion, left), 1 + max((line["seed"] for line in lines), default=0))
        about = {"code": code_digest(), "versions": versions("ray", "torch"), **circumstances()}
        append_result(options.output, KIND, line | about)
        lines.append(line)
        longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
        told = [*line["findings"], *line["wrong"], *line["orphans"]]
        print(f"seed {line['seed']}: {line['rounds']} rounds, {line['states']}", *told, sep="\n  ", flush=True)
    print(summary(lines))
    return int(not all(line["is_fine"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())

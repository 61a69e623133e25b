"""Seconds of a gradient exchange over slow links: torch's DDP and its hooks against every scheme, four ranks.

Over racks also against the schemes that know them, ``INSIDE across BETWEEN``.

A replay of recorded gradients of a GPT of 5 million parameters, without compute: what is measured is the exchange.
Everybody has one step a round, in an order that changes; a ratio is that of one round. Bytes are those that the kernel
counted at a rank's interface (over loopback those of all ranks). Needs root. With ``--gpu`` all ranks share one, and
NCCL takes each for a machine of its own: what travels goes through sockets all the same.

    python -m tests.benchmarks.exchange [50mbit|200mbit|1gbit|racks|loopback ...] [--gpu] [--rounds N] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import spread_document
from tests.benchmarks.links import PROFILES, Machine, machines

BASE = "ddp"
RANK = "tests.benchmarks.exchange_rank"
TIMEOUT_S = 1800.0


def run(profile: str, rounds: int, module: str = RANK, more: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """What rank 0 tells of every step, by contender; ``module`` is what ranks run, with ``more`` flags."""
    racks = [number for number, size in enumerate(PROFILES[profile].racks) for _ in range(size)]
    flags = [f"--rounds={rounds}", f"--racks={','.join(map(str, racks))}", *more]
    with machines(PROFILES[profile]) as found:
        ranks = [_started(machine, rank, found, module, flags) for rank, machine in enumerate(found)]
        try:
            told, _ = ranks[0].communicate(timeout=TIMEOUT_S)
            codes = [rank.wait(TIMEOUT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(codes):
        raise SystemExit(f"ranks of {profile} ended with {codes}; see above")
    steps = defaultdict[str, list[dict[str, Any]]](list)
    for line in told.splitlines():
        step = json.loads(line)
        steps[step.pop("name")].append(step)
    return steps


def _started(machine: Machine, rank: int, found: list[Machine], module: str, flags: list[str]) -> subprocess.Popen[str]:
    options = {
        "rank": rank,
        "size": len(found),
        "address": machine.address,
        "master": found[0].address,
        "counter": machine.counter,
    }
    flags = [*flags, *(f"--{name}={value}" for name, value in options.items())]
    nccl = {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": machine.interface, "NCCL_IB_DISABLE": "1"}
    variables = {**os.environ, **nccl, "GLOO_SOCKET_IFNAME": machine.interface, "OMP_NUM_THREADS": "1"}
    command = [*machine.inside, sys.executable, "-m", module, *flags]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE if rank == 0 else None, text=True)


def tell(profile: str, steps: dict[str, list[dict[str, Any]]], given: argparse.Namespace) -> None:
    """A line a contender; the ratios are to DDP in the same round."""
    document = {}
    for name, own in steps.items():
        seconds = [step["seconds"] for step in own]
        ratios = [base["seconds"] / step["seconds"] for base, step in zip(steps[BASE], own, strict=True)]
        num_bytes = statistics.median(step["bytes"] for step in own)
        print(
            f"{profile} {name:15} {statistics.median(seconds) * 1e3:8.1f} ms, {num_bytes / 1e6:7.2f} MB, "
            f"{statistics.median(ratios):6.2f} times as fast as {BASE} ({min(ratios):.2f} to {max(ratios):.2f}, "
            f"{len(ratios)} rounds)",
            flush=True,
        )
        document[name] = {"seconds": spread_document(seconds), "ratios": ratios, "bytes": num_bytes}
    kind = f"exchange {profile}, {'NCCL on one GPU' if given.gpu else 'gloo'}"
    tell_result(given.output, kind, ("torch",), document)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("profiles", nargs="*", default=[*PROFILES], choices=[*PROFILES])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gpu", action="store_true", help="by NCCL, between ranks that share one GPU")
    given = parser.parse_args()
    for profile in given.profiles:
        tell(profile, run(profile, given.rounds, more=["--gpu"] if given.gpu else ()), given)


if __name__ == "__main__":
    main()

"""Somebody who found the address of a Ray's head asks it for its nodes: ``python -m tests.cluster.stranger ADDRESS``.

Prints how many it is told of, or the error's type. A process of its own, as Ray reads its token from the environment.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from service.settings import environment

ROOT = Path(__file__).resolve().parents[2]
ASK_S = 60.0


def asked(address: str, variables: Mapping[str, str]) -> str:
    """What a stranger with these variables of Ray's, and no others, is told."""
    inherited = {name: value for name, value in environment().items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.stranger", address],
        cwd=ROOT,
        env={**inherited, "HOME": "/nonexistent", **variables},
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def main(address: str) -> None:
    # Only now, as the process that calls ``asked`` must not load Ray.
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # of Cython
    from ray.exceptions import AuthenticationError

    try:
        print(len(GcsClient(address=address).get_all_node_info(timeout=ASK_S / 2)))
    except AuthenticationError as error:
        print(type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Somebody else's Ray, to attach to: nodes are started by `ray start`, and all their files lie in one folder."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.settings import environment
from service.supervise.processes import belonging_to, kill_all
from tests.waiting import wait_for

START_S = 60.0
OBJECT_STORE_BYTES = 100 * 2**20

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's switch for real loopback; the service that attaches needs it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A Ray whose nodes' files all lie in ``folder`` on this machine; ``variables`` are what its drivers set."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def ray_home(prefix: str) -> Path:
    """A new folder for the files of a Ray, with the token that it asks for where its user finds it."""
    home = Path(tempfile.mkdtemp(prefix=prefix))
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text(secrets.token_hex(32))
    return home


def identity(home: Path) -> dict[str, str]:
    """The environment in which Ray's commands show the token of ``ray_home``."""
    return {"HOME": str(home), "RAY_AUTH_MODE": "token"}


def start_head(
    folder: Path, *flags: str, variables: Mapping[str, str], inside: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A head over ``folder``, which is its user's home too; waits until it is up."""
    head = ("--head", "--include-dashboard=false", f"--temp-dir={folder}")
    return start_node(folder, "head", *head, *flags, variables=variables, inside=inside)


def start_node(
    folder: Path, name: str, *flags: str, variables: Mapping[str, str], inside: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A node, its command begun by ``inside``; waits until it is up. What it tells is kept beside ``folder``."""
    told = folder.with_name(f"{folder.name}-{name}.log")
    with told.open("wb") as out:
        process = subprocess.Popen(
            [
                *(*inside, sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *flags),
                *("--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"),
                *("--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}"),
            ],
            env={**environment(), "HOME": str(folder), "RAY_TMPDIR": str(folder), **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def is_up() -> bool:
        assert process.poll() is None, told.read_text()
        return "Ray runtime started" in told.read_text()

    wait_for(f"Ray ({name})", is_up, START_S)
    return process


def drain_node(folder: Path, address: str, node_id: str, after_s: int, *, variables: Mapping[str, str]) -> None:
    """Announce at the head that a node is taken away in so many seconds; its processes are told nothing."""
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "ray.scripts.scripts", "drain-node", f"--address={address}"),
            *(f"--node-id={node_id}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"),
            f"--deadline-remaining-seconds={after_s}",
        ],
        env={**environment(), "HOME": str(folder), "RAY_TMPDIR": str(folder), **variables},
        check=True,
        capture_output=True,
        timeout=START_S,
    )


def end_ray(folder: Path) -> None:
    """All of its processes end, and its files go."""
    kill_all(belonging_to(folder))
    for path in [folder, *folder.parent.glob(f"{folder.name}-*")]:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

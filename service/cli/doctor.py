"""Checks whether this machine can run the service, one line each with what to do."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.markup import escape

from service.cli.doctor_reach import check_cluster, check_database, check_storage
from service.cli.failures import SERVER_ERROR
from service.cli.findings import Finding, run_apart
from service.cli.news import MARKS
from service.cli.options import Form
from service.cli.output import print_json, say
from service.settings import Settings, load_settings
from service.supervise.home import Home
from service.supervise.lock import current_holder
from service.supervise.ports import is_free
from service.supervise.supervisor import Mark

CHILD_LIMIT_S = 120.0
LEAST_FREE_BYTES = 2 * 10**9
LEAST_SHARED_BYTES = 250 * 10**6
_TORCH_PROGRAM = """
import json, torch
device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
count = torch.accelerator.device_count() if device.type != "cpu" else 0
(torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()
print(json.dumps({"version": torch.__version__, "device": device.type, "count": count}))
"""
_RAY_PROGRAM = "import ray; print(ray.__version__)"


def examine(flags: Mapping[str, object], form: Form) -> int:
    """Run all checks of what `serve` would meet with these flags, and print what they found; gives the exit code.

    That is a server error's when one failed.
    """
    settings = load_settings(flags)
    place = Home(settings.home)
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_ray,
        check_torch,
        lambda: check_home(place),
        lambda: check_port(settings, place),
        lambda: check_disk(place.path),
        check_shared_memory,
        lambda: check_database(settings),
        lambda: check_storage(settings),
    ]
    if settings.ray_address is not None:
        checks.append(lambda: check_cluster(settings))
    findings = []
    for check in checks:
        findings.append(check())
        if form is Form.TEXT:
            _tell(findings[-1])
    if form is Form.JSON:
        print_json({"findings": [asdict(f) for f in findings]})
    return SERVER_ERROR if any(f.mark is Mark.FAIL for f in findings) else 0


def check_python() -> Finding:
    """The interpreter; an older one than 3.11 cannot have got this far."""
    return Finding(Mark.OK, "Python", f"{platform.python_version()} ({sys.executable})")


def check_ray() -> Finding:
    """Ray can be imported, in a process of its own."""
    try:
        installed = version("ray")
    except PackageNotFoundError:
        return Finding(Mark.FAIL, "Ray", "is not installed", "pip install 'ray[train,tune]>=2.60,<2.61'")
    seen, complaint = run_apart(["-c", _RAY_PROGRAM], CHILD_LIMIT_S)
    if complaint:
        return Finding(
            Mark.FAIL, "Ray", f"{installed}: {complaint}", "install it again: pip install --force-reinstall ray"
        )
    return Finding(Mark.OK, "Ray", seen)


def check_torch() -> Finding:
    """Torch computes on its device, in a process of its own: a broken driver may take the process with it."""
    seen, complaint = run_apart(["-c", _TORCH_PROGRAM], CHILD_LIMIT_S)
    if complaint:
        return Finding(Mark.FAIL, "torch", complaint, "install it again, or a driver that fits: https://pytorch.org")
    found = json.loads(seen)
    where = "CPU" if found["device"] == "cpu" else f"{found['count']} x {found['device']}"
    return Finding(Mark.OK, "torch", f"{found['version']} on {where}")


def check_home(place: Home) -> Finding:
    """The home directory can be made or written."""
    folder = place.path
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(Mark.FAIL, "home", f"{folder} cannot be written", "choose another by --home")
    if place.path.exists() and not place.is_marked and any(place.path.iterdir()):
        return Finding(Mark.FAIL, "home", f"{place.path} holds other things", "choose an empty or new one by --home")
    return Finding(Mark.OK, "home", str(place.path))


def check_port(settings: Settings, place: Home) -> Finding:
    """The port is free, or the service itself listens there."""
    holder = current_holder(place.lock_file)
    if holder is not None:
        return Finding(Mark.OK, "port", f"the service runs (process {holder.pid}, {holder.url})")
    if settings.port and not is_free(settings.port):
        return Finding(Mark.WARN, "port", f"{settings.port} is taken", "choose another by --port, or 0 for any")
    return Finding(Mark.OK, "port", f"{settings.port} is free")


def check_disk(folder: Path) -> Finding:
    """Room for checkpoints and dependencies."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free at {folder}"
    if free < LEAST_FREE_BYTES:
        return Finding(Mark.WARN, "disk", text, "checkpoints and dependencies need room; free some, or use --storage")
    return Finding(Mark.OK, "disk", text)


def check_shared_memory() -> Finding:
    """Room for Ray's object store."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding(Mark.WARN, "memory", "there is no /dev/shm", "Ray uses files instead, which is slower")
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.1f} GB of shared memory free"
    if free < LEAST_SHARED_BYTES:
        return Finding(Mark.WARN, "memory", text, "enlarge /dev/shm (docker run --shm-size=1g), or Ray uses files")
    return Finding(Mark.OK, "memory", text)


def _tell(finding: Finding) -> None:
    say(f"{MARKS[finding.mark]} {finding.about:<9}{escape(finding.text)}")
    if finding.remedy:
        say(f"           [dim]{escape(finding.remedy)}[/dim]")

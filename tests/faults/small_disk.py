"""A file system of its own with hardly any room, and what fills it up; tests that use it are marked ``mount``."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK = "6m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with hardly any room."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(ballast: Path) -> None:
    """Take all the room that is left."""
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    for size in (65_536, 4096):
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, b"\0" * size)
    os.close(descriptor)

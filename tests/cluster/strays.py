"""What a service leaves outside its home: it gets temporary folders and a user of its own, and they stay empty."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
OF_TORCH = "torchinductor_"
"""Its cache, one for a user: whichever process loads the compiler first makes the folder."""

OF_OTHERS = ("PostgreSQL.", "sem.")
"""What servers and processes of other tests, which may run beside this one, put into shared memory."""


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Whoever starts in the block must be gone after it, with all that it put there. Raises AssertionError."""
    folder = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))  # Ray's sockets need a short path
    places = (folder / "tmp", folder / "user")
    for place in places:
        place.mkdir(mode=0o700)
    shared = _shared()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(places[0]))
            patch.setenv("HOME", str(places[1]))
            yield
        found = [path for place in places for path in place.rglob("*") if OF_TORCH not in str(path)]
        left = {str(path.relative_to(folder)) for path in found} | (_shared() - shared)
        assert not left, f"left behind: {sorted(left)[:20]}"
    finally:
        shutil.rmtree(folder)


def _shared() -> set[str]:
    found = SHARED_MEMORY.iterdir() if SHARED_MEMORY.is_dir() else ()
    return {str(path) for path in found if not path.name.startswith(OF_OTHERS)}

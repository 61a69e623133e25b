"""A save while the storage's disk is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.test_checkpoint import rounds_in, save
from workers.errors import CheckpointError
from workers.storage import MARK
from workers.storage_urls import open_storage
from workers.training.checkpoint import CheckpointWriter


def test_a_save_to_storage_that_is_away_says_so_and_makes_no_other(tmp_path: Path) -> None:
    root = tmp_path / "storage"
    root.mkdir()
    (root / MARK).touch()
    writer = CheckpointWriter(open_storage(f"{root}/jobs/job_1/checkpoints", root=str(root)), 2, None, "max")
    save(writer, 1)
    away = root.rename(tmp_path / "away")
    root.mkdir()
    with pytest.raises(CheckpointError, match=rf"step 2 cannot be written.*{root} is there without its file.*mount"):
        save(writer, 2)
    assert list(root.iterdir()) == []
    root.rmdir()
    away.rename(root)
    save(writer, 3)
    assert rounds_in(root / "jobs" / "job_1" / "checkpoints") == [1, 3]

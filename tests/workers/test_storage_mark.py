"""A folder that should be an installation's storage: without its mark nothing is made there, nor taken for missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.storage import MARK, Storage, StorageAwayError
from workers.storage_urls import join, open_storage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "storage"
    root.mkdir()
    (root / MARK).write_text("concertina-1")
    return root


def part_of(root: Path) -> Storage:
    return open_storage(join(str(root), "jobs", "job_1"), root=f"file://{root}")


def test_while_the_mark_is_there_folders_are_made_as_needed(root: Path) -> None:
    storage = part_of(root)
    assert (storage.keys(), storage.folders(), storage.size("a/b")) == ([], [], None)
    storage.write("a/b", [b"x"])
    storage.clear()
    storage.write("a/b", [b"y"])
    assert storage.keys() == ["a/b"]


@pytest.mark.parametrize("is_empty_folder", [True, False])
def test_a_disk_that_is_not_mounted_is_told_and_nothing_is_made_in_its_place(
    root: Path, *, is_empty_folder: bool
) -> None:
    storage = part_of(root)
    storage.write("a/b", [b"x"])
    away = root.rename(root.with_name("away"))
    if is_empty_folder:
        root.mkdir()
    for call in (lambda: storage.write("a/c", [b"x"]), storage.keys, storage.folders, lambda: storage.size("a/b")):
        with pytest.raises(StorageAwayError, match=f"the storage {root} is .*mount its disk"):
            call()
    assert root.exists() == is_empty_folder
    assert not is_empty_folder or list(root.iterdir()) == []
    if is_empty_folder:
        root.rmdir()
    away.rename(root)
    storage.write("a/c", [b"x"])
    assert storage.keys() == ["a/b", "a/c"]

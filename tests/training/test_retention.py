"""Of the checkpoints the right ones are kept: the newest, the best, final ones, and what others ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.test_checkpoint import rounds_in, save, writer_in
from workers import retention
from workers.checkpoints import Manifest, checkpoint_names, damage, read_manifest
from workers.errors import CheckpointError
from workers.storage import Storage
from workers.storage_urls import open_storage


def test_what_other_jobs_asked_for_is_kept_beside_the_newest(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, keep=1)
    for round, saves in enumerate((0, 1, 1, 2, 2, 3, 3, 3), start=1):
        save(writer, round, saves=saves)
    assert rounds_in(tmp_path) == [4, 6, 8]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, keep=2)
    for round in (1, 2, 3, 4):
        save(writer, round, metric=float(-round))
    assert rounds_in(tmp_path) == [3, 4]


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 1)])
def test_the_best_by_the_metric_is_kept(mode: str, best: int, tmp_path: Path) -> None:
    writer = writer_in(tmp_path, keep=1, metric="eval.accuracy", mode=mode)
    for round, metric in ((1, 0.1), (2, 0.9), (3, 0.5), (4, None), (5, 0.6)):
        save(writer, round, metric=metric)
    assert rounds_in(tmp_path) == [best, 5]


def test_final_ones_are_kept_for_good(tmp_path: Path) -> None:
    save(writer_in(tmp_path, keep=1), 1, is_final=True)
    writer = writer_in(tmp_path, keep=1)
    save(writer, 2, attempt=2)
    save(writer, 3, attempt=2)
    assert rounds_in(tmp_path) == [1, 3]


def test_a_newer_lineage_counts_as_newer_than_a_higher_round(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, keep=1)
    save(writer, 9)
    save(writer, 4, lineage=2)
    assert rounds_in(tmp_path) == [4]


def test_a_manifest_that_is_not_read_well_once_does_not_cost_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, storage = writer_in(tmp_path, keep=2), open_storage(str(tmp_path))
    save(writer, 1)
    save(writer, 2, is_final=True)
    name = checkpoint_names(storage)[-1]

    def badly(storage: Storage, of: str, key: str | None = None) -> Manifest | None:
        if of == name:
            raise CheckpointError("it does not have its checksum")
        return read_manifest(storage, of, key)

    monkeypatch.setattr(retention, "read_manifest", badly)
    for round in (3, 4, 5):
        save(writer, round)
    assert damage(storage, name) is None
    third = name.replace("000000002", "000000003")
    assert third != name
    assert not [key for key in storage.keys(retention.PIECES) if third in key], "what came later is swept all the same"
    assert rounds_in(tmp_path) == [2, 4, 5]

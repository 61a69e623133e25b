"""What every storage promises; each implementation passes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store import ObjectStore
from workers.local_storage import LocalStorage
from workers.remote_storage import RemoteStorage
from workers.storage import Data, Storage, read
from workers.storage_urls import open_storage


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture(params=["folder", "file://", "s3://"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    match request.param:
        case "folder":
            yield LocalStorage(tmp_path / "root")
        case "file://":
            yield RemoteStorage(f"file://{tmp_path}/root")
        case _:
            objects: ObjectStore = request.getfixturevalue("objects")
            yield open_storage(objects.make_bucket() + "/root")


def test_what_is_written_is_read_from_any_place(storage: Storage) -> None:
    assert storage.write("a/b", [b"hello ", bytearray(b""), memoryview(b"world")]) == 11
    assert (storage.size("a/b"), read(storage, "a/b")) == (11, b"hello world")
    with storage.open("a/b") as file:
        file.seek(6)
        rest = bytearray(9)
        assert file.readinto(rest) == 5  # type: ignore[attr-defined]  # of every binary file that there is
        assert rest[:5] == b"world"


def test_writing_again_replaces_the_whole(storage: Storage) -> None:
    storage.write("a", [b"long " * 100])
    storage.write("a", [b"short"])
    assert (read(storage, "a"), storage.size("a")) == (b"short", 5)


def test_an_empty_object_is_there(storage: Storage) -> None:
    storage.write("a", [])
    assert (storage.size("a"), read(storage, "a")) == (0, b"")


def test_what_is_missing_is_missing_and_deleting_it_is_no_error(storage: Storage) -> None:
    assert (storage.size("a"), storage.listed()) == (None, [])
    assert (storage.keys(), storage.keys("b"), storage.folders()) == ([], [], [])
    with pytest.raises(FileNotFoundError):
        read(storage, "a")
    storage.delete("a")
    storage.clear()
    storage.write("b/c", [b"x"])
    assert (storage.size("b"), storage.size("a")) == (None, None)


def test_keys_are_listed_in_order_by_folder(storage: Storage) -> None:
    for key in ("b/2", "b/1", "c", "b/d/e"):
        storage.write(key, [key.encode()])
    assert storage.keys() == ["b/1", "b/2", "b/d/e", "c"]
    assert storage.keys("b") == ["b/1", "b/2", "b/d/e"]
    assert (storage.folders(), storage.folders("b")) == (["b"], ["d"])
    listed = [(found.key, found.size_bytes) for found in storage.listed()]
    assert listed == [("b/1", 3), ("b/2", 3), ("b/d/e", 5), ("c", 1)]
    assert all(found.modified_s > 1.7e9 for found in storage.listed())
    storage.delete("b/1")
    assert storage.keys("b") == ["b/2", "b/d/e"]
    storage.clear()
    assert storage.keys() == []


def test_a_write_that_breaks_off_leaves_no_object_where_none_was(storage: Storage) -> None:
    def parts() -> Iterator[Data]:
        yield b"half"
        raise KeyError

    with pytest.raises(KeyError):
        storage.write("a", parts())
    assert (storage.size("a"), storage.keys()) == (None, [])

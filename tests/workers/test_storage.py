"""What every storage promises; each implementation passes it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from s3fs import S3FileSystem

from tests.object_store import ObjectStore
from workers.local_storage import LocalStorage
from workers.remote_storage import RemoteStorage
from workers.storage import Data, Storage, read
from workers.storage_urls import open_storage

SENT_AT_ONCE_BYTES = 5 * 2**20
"""The least that a bucket takes as a part of an object."""


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch, ObjectStore() as store:
        patch.setattr(S3FileSystem, "default_block_size", SENT_AT_ONCE_BYTES)
        yield store


@pytest.fixture(params=["folder", "file://", "memory://", "s3://"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    match request.param:
        case "folder":
            yield LocalStorage(tmp_path / "root")
        case "file://":
            yield RemoteStorage(f"file://{tmp_path}/root")
        case "memory://":
            yield (made := open_storage(f"memory://{tmp_path}/root"))
            made.clear()
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


@pytest.mark.parametrize("size_bytes", [5, SENT_AT_ONCE_BYTES + 5])
def test_a_write_that_breaks_off_leaves_what_was_there_be_it_nothing(storage: Storage, size_bytes: int) -> None:
    def parts() -> Iterator[Data]:
        yield b"x" * size_bytes
        raise KeyError

    with pytest.raises(KeyError):
        storage.write("a", parts())
    gc.collect()  # a file that is let go must not be stored when its memory is
    assert (storage.size("a"), storage.keys()) == (None, [])
    storage.write("a", [b"earlier"])
    with pytest.raises(KeyError):
        storage.write("a", parts())
    gc.collect()
    assert (read(storage, "a"), storage.keys()) == (b"earlier", ["a"])


class OnlyToFreeNames(LocalFileSystem):
    """As some protocols rename."""

    def mv(self, path1: str, path2: str, **more: object) -> None:
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2, **more)


def test_where_only_free_names_are_renamed_to_an_object_is_replaced_too(tmp_path: Path) -> None:
    storage = RemoteStorage(f"file://{tmp_path}/root")
    storage._files = OnlyToFreeNames()
    for data in (b"one", b"two"):
        storage.write("a", [data])
    assert (read(storage, "a"), storage.keys()) == (b"two", ["a"])


class MovesNothingNew(LocalFileSystem):
    """No new object comes to its place, whatever is there."""

    def mv(self, path1: str, path2: str, **more: object) -> None:
        if self.cat_file(path1) == b"two":
            raise OSError("away")
        super().mv(path1, path2, **more)


def test_an_object_stays_where_its_successor_cannot_be_put_in_its_place(tmp_path: Path) -> None:
    storage = RemoteStorage(f"file://{tmp_path}/root")
    storage.write("a", [b"one"])
    storage._files = MovesNothingNew()
    with pytest.raises(OSError, match="away"):
        storage.write("a", [b"two"])
    assert (read(storage, "a"), storage.keys()) == (b"one", ["a"])

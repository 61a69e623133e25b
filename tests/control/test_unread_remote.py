"""A checkpoint in an object store of which an object stays unreadable is passed over; a whole store is waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.control.test_restore import info
from tests.object_store import LostObjects, ObjectStore
from tests.stored_checkpoint import store_checkpoint
from workers.checkpoints import MANIFESTS, PIECES, list_readable
from workers.control.restore import CheckpointSearch
from workers.storage import Storage
from workers.storage_urls import open_storage

NEWEST, BEFORE = info(6).path, info(5).path


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def stored(objects: ObjectStore) -> Storage:
    storage = open_storage(f"{objects.make_bucket()}/checkpoints")
    for step in (5, 6):
        store_checkpoint(storage, info(step), {"w": b"weights"})
    return storage


@pytest.mark.parametrize("folder", [PIECES, MANIFESTS])
def test_the_one_before_is_taken_and_the_object_named(stored: Storage, folder: str) -> None:
    [key] = [key for key in stored.keys(folder) if NEWEST in key]
    with LostObjects(key):
        search = CheckpointSearch(stored.url, 0)
        with pytest.raises(OSError, match=f"{stored.url}/{key} cannot be read: .*Could not connect"):
            search.look()
        found = search.look(passes_unread=True)
    assert found.latest == info(5)
    [row] = found.rows
    assert f"is passed over: {stored.url}/{key} cannot be read: " in row.reason


@pytest.mark.parametrize("folder", [PIECES, MANIFESTS])
def test_where_none_can_be_read_none_is_lost(stored: Storage, folder: str) -> None:
    before = stored.keys()
    with LostObjects(*stored.keys(folder)):
        search = CheckpointSearch(stored.url, 0)
        for passes_unread in (False, True):
            with pytest.raises(OSError, match="cannot be read"):
                search.look(passes_unread=passes_unread)
    assert stored.keys() == before
    assert search.look().latest == info(6)


def test_the_list_has_what_can_be_read_and_names_the_rest(stored: Storage) -> None:
    newest, before = (f"{MANIFESTS}/{name}.json" for name in (NEWEST, BEFORE))
    with LostObjects(newest):
        assert list_readable(stored) == ([info(5)], frozenset({NEWEST}))
    with LostObjects(newest, before), pytest.raises(OSError, match="cannot be read"):
        list_readable(stored)
    assert list_readable(stored) == ([info(5), info(6)], frozenset())

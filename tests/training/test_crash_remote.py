"""A save to a bucket that is cut off at any request leaves the checkpoints before it as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.object_store import CutRequests, ObjectStore
from tests.training.test_crash import assert_is, assert_no_garbage, header, restored, save_to, state
from workers.checkpoints import list_checkpoints
from workers.storage_urls import open_storage
from workers.training.writing import Wish, write_checkpoint


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


def test_a_cut_at_any_request_leaves_the_newest_complete_one_and_no_garbage(objects: ObjectStore) -> None:
    url = f"{objects.make_bucket()}/checkpoints"
    storage = open_storage(url)
    for round in (1, 2, 3):
        save_to(storage, round)
    with CutRequests() as whole:
        save_to(storage, 4)
    assert whole.num_asked > 5
    newest, lasted = 4, set()
    for at in range(1, whole.num_asked + 1):
        with pytest.raises(TimeoutError), CutRequests(at):
            save_to(storage, newest + 1)
        loaded = restored(url)
        assert_is(loaded, loaded.round)
        lasted.add(loaded.round - newest)
        newest += 2
        save_to(storage, newest)
        assert_is(restored(url), newest)
        assert_no_garbage(url)
    assert lasted == {0, 1}


@pytest.mark.parametrize("is_done", [False, True], ids=["not carried out", "answer lost"])
@pytest.mark.parametrize("is_last", [True, False], ids=["the process ends", "once"])
def test_a_checkpoint_whose_manifest_cannot_be_written_again_stays(
    objects: ObjectStore, is_done: bool, is_last: bool
) -> None:
    url = f"{objects.make_bucket()}/checkpoints"
    storage = open_storage(url)
    save_to(storage, 1)
    final = replace(header(1), is_final=True)
    with pytest.raises(TimeoutError), CutRequests(1, is_done=is_done, is_last=is_last):
        write_checkpoint(storage, state(1), final, None, Wish())
    assert_is(restored(url), 1)
    assert [info.is_final for info in list_checkpoints(storage)] == [is_done]
    write_checkpoint(storage, state(1), final, None, Wish())
    assert_is(restored(url), 1)
    assert [info.is_final for info in list_checkpoints(storage)] == [True]


def test_a_request_whose_answer_is_lost_fails_the_save_and_leaves_nothing_of_it(objects: ObjectStore) -> None:
    url = f"{objects.make_bucket()}/checkpoints"
    storage = open_storage(url)
    save_to(storage, 1)
    before = storage.keys()
    for at in (1, 2, 3, 4):  # the draft, what stands still, what moves, the manifest
        with pytest.raises(TimeoutError), CutRequests(at, is_done=True, is_last=False):
            write_checkpoint(storage, state(2), header(2), None, Wish())
        assert storage.keys() == before

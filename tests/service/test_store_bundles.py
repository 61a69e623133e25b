"""Bundles in the store: which are forgotten, and that no upload can be hit by the removal of another."""

from __future__ import annotations

import asyncio

import pytest

from service.schedule_spec import parse_schedule_spec
from service.store.bundles import UploadForgottenError
from service.store.opening import Store, open_store
from service.store.references import UnknownBundleError
from tests.service.given import Clock, leader, spec, stored_bundle
from tests.service.scheduled import schedule_document

pytestmark = pytest.mark.anyio

KEEP_S, UPLOAD_S = 1000.0, 100.0


async def test_a_bundle_is_forgotten_once_it_is_old_and_nothing_names_it(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    by_job, by_schedule, unused = [await stored_bundle(store, c * 64, f"bundles/{c}.zip") for c in "abc"]
    await store.jobs.submit(spec(entrypoint="train:build", bundle=by_job.id))
    job = {"entrypoint": "train:build", "steps": 10, "bundle": by_schedule.id}
    await store.schedules.create(*parse_schedule_spec(schedule_document(target={"job": job}), clock()))
    clock.advance(KEEP_S - 1)
    await store.reconciler.forget_bundles(KEEP_S, UPLOAD_S, fence)
    assert await store.bundles.bundle(unused.id) is not None
    assert await store.bundles.touch(unused.sha256) is not None
    clock.advance(KEEP_S - 1)
    await store.reconciler.forget_bundles(KEEP_S, UPLOAD_S, fence)
    assert await store.bundles.bundle(unused.id) is not None, "it was uploaded again meanwhile"
    clock.advance(2)
    await store.reconciler.forget_bundles(KEEP_S, UPLOAD_S, fence)
    assert await store.reconciler.bundle_keys() == {by_job.key, by_schedule.key}
    with pytest.raises(UnknownBundleError):
        await store.jobs.submit(spec(entrypoint="train:build", bundle=unused.id))


async def test_the_same_bytes_after_the_removal_are_another_object(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    first = await stored_bundle(store, "a" * 64, "bundles/one.zip")
    clock.advance(KEEP_S + 1)
    await store.reconciler.forget_bundles(KEEP_S, UPLOAD_S, fence)
    second = await stored_bundle(store, "a" * 64, "bundles/two.zip")
    assert (second.id, second.key) == (first.id, "bundles/two.zip")
    assert await store.reconciler.bundle_keys() == {"bundles/two.zip"}, "the bytes of the first are nobody's"


async def test_of_two_uploads_of_the_same_bytes_the_first_to_end_counts(store: Store) -> None:
    for key in ("bundles/one.zip", "bundles/two.zip"):
        await store.bundles.announce(key)
    assert await store.reconciler.bundle_keys() == {"bundles/one.zip", "bundles/two.zip"}
    row, is_new = await store.bundles.add("a" * 64, 100, 1, "bundles/two.zip")
    again, is_again_new = await store.bundles.add("a" * 64, 100, 1, "bundles/one.zip")
    assert (row.key, is_new, again, is_again_new) == ("bundles/two.zip", True, row, False)
    await store.bundles.announce("bundles/three.zip")
    healed, _ = await store.bundles.add("a" * 64, 100, 1, "bundles/three.zip", lost=row.key)
    assert healed.key == "bundles/three.zip"
    assert await store.reconciler.bundle_keys() == {"bundles/three.zip"}


async def test_an_upload_that_was_given_up_never_becomes_a_bundle(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    await store.bundles.announce("bundles/slow.zip")
    clock.advance(UPLOAD_S + 1)
    await store.reconciler.forget_bundles(KEEP_S, UPLOAD_S, fence)
    assert await store.reconciler.bundle_keys() == frozenset()
    with pytest.raises(UploadForgottenError):
        await store.bundles.add("a" * 64, 100, 1, "bundles/slow.zip")
    assert await store.reconciler.bundle_keys() == frozenset()


async def test_a_submission_at_the_moment_of_the_removal_finds_its_bundle_or_is_refused(
    store: Store, database_url: str, clock: Clock
) -> None:
    fence = await leader(store)
    reconcilers = open_store(database_url, clock)
    accepted = refused = 0
    for number in range(12):
        bundle = await stored_bundle(store, f"{number:02d}" * 32, f"bundles/{number}.zip")
        clock.advance(KEEP_S + 1)
        submitting = asyncio.create_task(store.jobs.submit(spec(entrypoint="train:build", bundle=bundle.id)))
        for _ in range(number % 3):  # one is begun a little before the other, or after it
            await asyncio.sleep(0)
        await reconcilers.reconciler.forget_bundles(KEEP_S, UPLOAD_S, fence)
        try:
            await submitting
        except UnknownBundleError:
            refused += 1
            assert await store.bundles.bundle(bundle.id) is None
        else:
            accepted += 1
            assert bundle.key in await store.reconciler.bundle_keys()
    await reconcilers.close()
    assert accepted + refused == 12

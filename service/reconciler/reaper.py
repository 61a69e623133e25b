"""The leader's broom: removes what deleted jobs left, and bundles that nothing starts with any more.

Files of jobs that the database does not know at all stay: it may have been restored from an older copy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from service.folders import BUNDLES, JOBS, bundle_key_in
from service.patience import answered
from service.ports import ClusterPort
from service.reconciler.listing import Listing
from service.reconciler.orphans import Suspects, orphaned_actors
from service.replica import storage_mark
from service.store.port import ReconcilerStore
from workers.scratch import LOGS, Bounds, tidy
from workers.storage_urls import join, open_storage

log = structlog.get_logger("concertina.reconciler")

REAP_S = 10.0
BUNDLES_S = 600.0
UPLOAD_S = 6 * 3600.0
"""An upload that has not come to its end after so long never does: its bytes are given up."""

NOTED_S = 600.0
"""So long a deletion is remembered at least, for what comes late to a deleted job's files."""

MAX_NAMED = 50
"""Of jobs that are new among the unknown, in one line of the log."""

MAX_BUNDLES = 100
"""Removed in one look, by a call with a bound; the others at the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What is kept clean: ``storage`` by its URL, and ``scratch`` on this machine, within ``bounds``.

    A bundle that nothing names stays ``bundle_keep_s`` after its last upload. ``fence`` goes with every write.
    """

    store: ReconcilerStore
    cluster: ClusterPort
    listing: Listing
    fence: int
    storage: str
    scratch: Path
    bounds: Bounds
    bundle_keep_s: float


class Reaper:
    """Not for several tasks at once. A look that is not due does nothing; ``now_s`` is monotonic."""

    def __init__(self, premises: Premises) -> None:
        self._at = premises
        self._actors, self._strays = Suspects(), Suspects()
        self._unknown: frozenset[str] = frozenset()
        self._reaped_s = self._swept_s = float("-inf")

    async def look(self, now_s: float) -> None:
        """Raises ClusterLostError, FencedOutError; storage that fails is looked at again the next time."""
        if now_s - self._reaped_s < REAP_S:
            return
        self._reaped_s = now_s
        # First: they hold room on the cluster, and storage may hang.
        await self._end_actors(now_s)
        await asyncio.to_thread(tidy, self._at.scratch, self._at.bounds)
        await self._at.store.finish_deletions()
        left: Mapping[str, str] = {}
        stored: Mapping[str, str] | None = None
        with _failing_told():
            left = await answered(partial(_places, str(self._at.scratch / LOGS)))
        with _failing_told():
            if await self._is_ours():
                await self._at.listing.catch_up()
                stored = await answered(partial(_places, join(self._at.storage, JOBS)))
        await self._clear(left, stored or {}, now_s)
        if stored is not None:
            await self._at.store.forget_deletions(NOTED_S, stored, self._at.fence)
            with _failing_told():
                await self._sweep_bundles(now_s)

    async def _is_ours(self) -> bool:
        """A database that is new, or another one, knows none of the jobs whose files are there."""
        mark = await answered(partial(storage_mark, open_storage(self._at.storage)))
        return mark == await self._at.store.installation_id()

    async def _end_actors(self, now_s: float) -> None:
        """Names first, rows second; ended is only what was seen so twice. Of a job that waits nothing is there."""
        names = await self._at.cluster.names()
        rows = {job.id: job for job in await self._at.store.live_jobs(max_queued=0)}
        sweeps = {sweep.id: sweep for sweep in await self._at.store.live_sweeps()}
        if actors := self._actors.ripe(orphaned_actors(names, rows, sweeps), now_s):
            log.warning("ending actors of no job", names=actors)
            await self._at.cluster.kill(actors)

    async def _clear(self, left: Mapping[str, str], stored: Mapping[str, str], now_s: float) -> None:
        """Places first, rows second; removed is only what was seen so twice."""
        known, deleted = await self._at.store.job_ids(), await self._at.store.deleted_jobs()
        strays = {place for job_id, place in left.items() if job_id not in known}
        strays |= {place for job_id, place in stored.items() if job_id in deleted - known}
        for place in self._strays.ripe(strays, now_s):
            log.warning("removing files of no job", place=place)
            with contextlib.suppress(OSError):
                await answered(open_storage(place).clear)
        if unknown := stored.keys() - known - deleted - self._unknown:
            self._unknown |= unknown
            some = sorted(unknown)[:MAX_NAMED]
            log.warning("files of jobs that the database does not know stay", number=len(unknown), jobs=some)

    async def _sweep_bundles(self, now_s: float) -> None:
        """Rows first, bytes second: who is killed in between leaves bytes that no row names, which the next removes."""
        if now_s - self._swept_s < BUNDLES_S:
            return
        await self._at.store.forget_bundles(self._at.bundle_keep_s, UPLOAD_S, self._at.fence)
        # Keys first, rows second: a key that is written to was noted before.
        listed = await answered(partial(open_storage(self._at.storage).keys, BUNDLES))
        known = await self._at.store.bundle_keys()
        unknown = [key for key in listed if bundle_key_in(key) not in known]
        await answered(partial(_delete, self._at.storage, unknown[:MAX_BUNDLES]))
        if len(unknown) <= MAX_BUNDLES:
            self._swept_s = now_s


@contextlib.contextmanager
def _failing_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("not all can be looked into", why=str(error))


def _places(root: str) -> dict[str, str]:
    """What jobs have left, by their ids."""
    return {job_id: join(root, job_id) for job_id in open_storage(root).folders()}


def _delete(url: str, keys: Collection[str]) -> None:
    storage = open_storage(url)
    for key in keys:
        log.warning("removing a bundle that nothing names", key=key)
        storage.delete(key)

"""The store's lists of checkpoints, brought up to what storage holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import structlog

from service.folders import checkpoints_place
from service.patience import answered
from service.states import PLACED_STATES
from service.store.port import ReconcilerStore
from workers.checkpoints import list_readable
from workers.storage_urls import open_storage

log = structlog.get_logger("concertina.reconciler")


@dataclass(frozen=True, slots=True)
class Listing:
    """One leader's; ``fence`` goes with every write, ``storage`` is a URL."""

    store: ReconcilerStore
    storage: str
    fence: int
    _missed: set[str] = field(default_factory=set)

    def put_off(self, job_id: str) -> None:
        """Its list may differ from what storage holds, until ``bring_up`` of it succeeds."""
        self._missed.add(job_id)

    async def bring_up(self, job_id: str) -> None:
        """List what is in storage, also what was saved, or thinned out, while nobody looked. Raises OSError."""
        self.put_off(job_id)
        storage = open_storage(checkpoints_place(self.storage, job_id), root=self.storage)
        found, unread = await answered(partial(list_readable, storage))
        if unread:
            # They stay as they are known until a controller has looked: to be unreadable now is not to be gone.
            log.warning("checkpoints cannot be read", job=job_id, names=sorted(unread))
            found += [info for info in await self.store.checkpoints(job_id) if info.path in unread]
        await self.store.register_checkpoints(job_id, found, self.fence)
        self._missed.discard(job_id)

    async def catch_up(self) -> None:
        """Of jobs that came to rest while storage gave no answer; a placed one is its pursuit's. Raises OSError."""
        for job_id in sorted(self._missed):
            job = await self.store.job(job_id)
            if job is None:
                self._missed.discard(job_id)
            elif job.state not in PLACED_STATES:
                await self.bring_up(job_id)

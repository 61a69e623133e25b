"""Counts the jobs that have not ended, in the database itself: no service may run that could be asked."""

from __future__ import annotations

import asyncio

from service.store.opening import open_store


def num_unended(database_url: str) -> int:
    """How many jobs have not ended, none where there are no tables yet. Not for callers inside an event loop.

    Raises DatabaseAwayError.
    """
    return asyncio.run(_count(database_url))


async def _count(database_url: str) -> int:
    store = open_store(database_url)
    try:
        return await store.jobs.num_unended() if await store.database.has_tables() else 0
    finally:
        await store.close()

"""What an installation has in storage that is a URL: told by its mark there, and removed with the home."""

from __future__ import annotations

import asyncio

from service.folders import BUNDLES, JOBS
from service.settings import Settings
from service.store.opening import open_store
from workers.storage import MARK, read
from workers.storage_urls import join, open_storage, provide


def is_ours(settings: Settings) -> bool:
    """Whether the storage is a URL whose objects are this installation's. Not for callers inside an event loop.

    Of a database server it is not: other replicas may use both. Raises OSError where the storage cannot be read,
    DatabaseAwayError.
    """
    file = settings.database_file
    if settings.storage_folder is not None or file is None or not file.is_file():
        return False
    provide(settings.storage_url, settings.storage_options)
    try:
        mark = read(open_storage(settings.storage_url), MARK).decode(errors="replace").strip()
    except FileNotFoundError:
        return False
    return mark == asyncio.run(_installation_id(settings.database_url))


def empty(url: str) -> None:
    """Remove all objects of the installation, the mark last: whoever is interrupted can do so again. Raises OSError."""
    for part in (BUNDLES, JOBS):
        open_storage(join(url, part)).clear()
    open_storage(url).delete(MARK)


async def _installation_id(database_url: str) -> str | None:
    store = open_store(database_url)
    try:
        return await store.leases.installation_id() if await store.database.has_tables() else None
    finally:
        await store.close()

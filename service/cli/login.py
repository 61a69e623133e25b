"""Makes the links that log a browser in once: in the database, which only this and `unended` open."""

from __future__ import annotations

import asyncio

from service.auth import make_login_link
from service.settings import Settings
from service.store.opening import open_store


def login_link(settings: Settings, url: str) -> str:
    """A link to the pages at ``url`` that works once within ten minutes; the service has been started before."""
    return asyncio.run(_make(settings.database_url, url))


async def _make(database_url: str, url: str) -> str:
    store = open_store(database_url)
    try:
        return await make_login_link(store.access, url)
    finally:
        await store.close()

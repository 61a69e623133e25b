"""``python -m service.reconciler``: settings come from the environment, Ray's variables are set before."""

from __future__ import annotations

import asyncio
import os
import sys

from service.log import configure_log
from service.migrations.upgrade import upgrade
from service.reconciler.process import Exit, Process
from service.settings import load_settings
from service.store.opening import open_store
from service.store.port import DatabaseAwayError
from service.supervise.pulse import beating

AWAY_S = 1.0


async def _run() -> Exit:
    configure_log()
    settings = load_settings()
    async with beating():
        await _upgrade(settings.database_url)
        store = open_store(settings.database_url)
        try:
            return await Process(settings, store.reconciler).run()
        finally:
            await store.close()


async def _upgrade(database_url: str) -> None:
    """Wait for a database that is away; what cannot wait, a signal ends."""
    while True:
        try:
            return await asyncio.to_thread(upgrade, database_url)
        except DatabaseAwayError:
            await asyncio.sleep(AWAY_S)


def main() -> None:
    """Run to the end, and leave without waiting for threads that may hang in a Ray that is gone."""
    code = asyncio.run(_run())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

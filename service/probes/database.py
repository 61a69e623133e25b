"""``python -m service.probes.database``: reaches the database of the settings; nothing is made or changed in it.

Prints ``{seen, why}``: ``why`` it cannot be used, empty where it can.
"""

from __future__ import annotations

import asyncio
import json
import time

from service.migrations.upgrade import head, knows
from service.settings import load_settings
from service.store.database import Database
from service.store.leases import LeaseStore
from service.store.port import DatabaseAwayError
from service.store.server import read_server


async def look(url: str) -> dict[str, str]:
    """What is there: kind, version, migration."""
    database = Database(url)
    try:
        server = await read_server(database)
        revision = await LeaseStore(database, time.monotonic).revision()
    except DatabaseAwayError as error:
        return {"seen": "", "why": str(error)}
    finally:
        await database.close()
    kind = server.kind
    if server.is_standby:
        return {"seen": kind, "why": f"{kind} is a standby, which takes no writes"}
    if revision is None:
        return {"seen": f"{kind}, without tables yet: the first `concertina serve` makes them", "why": ""}
    if not knows(revision):
        return {"seen": kind, "why": f"it is at migration {revision}, of a newer version of this service"}
    newer = "" if revision == head() else f"; the next `concertina serve` brings it to {head()}"
    return {"seen": f"{kind} at migration {revision}{newer}", "why": ""}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(look(load_settings().database_url))))

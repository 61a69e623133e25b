"""``python -m service.probes.storage``: writes, reads and removes an object in the storage of the settings.

Prints ``{seen, why}``: ``why`` it cannot be used, empty where it can.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from service.replica import storage_mark
from service.settings import load_settings
from workers.errors import described
from workers.storage import read
from workers.storage_urls import open_storage, provide


def look(url: str, options: dict[str, Any]) -> dict[str, str]:
    """Whether what is written can be read back, and which installation's mark is there."""
    provide(url, options)
    key, data = f"doctor.{secrets.token_hex(8)}", secrets.token_bytes(16)
    try:
        storage = open_storage(url)
        storage.write(key, [data])
        found = read(storage, key)
        storage.delete(key)
        mark = storage_mark(storage)
    except Exception as error:  # libraries of other storages raise what they like
        return {"seen": "", "why": described(error)}
    if found != data:
        return {"seen": "", "why": "it gave back other bytes than were written"}
    used = f"used by installation {mark}" if mark else "not used by an installation yet"
    return {"seen": f"can be written and read; {used}", "why": ""}


if __name__ == "__main__":
    settings = load_settings()
    print(json.dumps(look(settings.storage_url, settings.storage_options)))

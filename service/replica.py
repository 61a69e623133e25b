"""Several services on one database: who is who, and whether all of them see the same storage.

The leader leaves the installation's name in its storage. A replica that comes while another one
leads must find that name in its own, else bundles and checkpoints would be on two machines.
"""

from __future__ import annotations

import socket
from pathlib import Path

from service.folders import MARK
from service.store.leases import Installation
from workers.storage import Storage, open_storage


class StorageNotSharedError(Exception):
    """This replica's storage is not the one that the others use."""


def replica_name(home: Path) -> str:
    """The same for every process of a home, so that one that died is succeeded at once."""
    return f"{socket.gethostname()}:{home}"


def mark_storage(url: str, installation_id: str) -> None:
    """Leave the installation's name for other replicas to find; for the leader. Raises OSError."""
    storage = open_storage(url)
    if _read(storage) != installation_id:
        storage.write(MARK, [f"{installation_id}\n".encode()])


def check_storage(url: str, home: Path, installation: Installation) -> None:
    """Raises StorageNotSharedError while another replica leads whose storage is not ours."""
    leader = installation.leader
    if leader in (None, replica_name(home)) or _read(open_storage(url)) == installation.id:
        return
    raise StorageNotSharedError(
        f"{leader} serves the same database, and the storage {url} is not the one it uses "
        f"(no mark of {installation.id} is in it); give all replicas one folder that all of their machines see, or one "
        "URL, by --storage"
    )


def _read(storage: Storage) -> str | None:
    try:
        with storage.open(MARK) as file:
            return file.read(1000).decode(errors="replace").strip()
    except OSError:
        return None

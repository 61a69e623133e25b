"""Several services on one database: who is who, and whether all of them see the same storage.

The leader leaves the installation's name in its storage. A replica that comes while another one
leads must find that name in its own, else bundles and checkpoints would be on two machines.
"""

from __future__ import annotations

import socket
from pathlib import Path

from service.folders import storage_mark
from service.store.leases import Installation


class StorageNotSharedError(Exception):
    """This replica's storage is not the one that the others use."""


def replica_name(home: Path) -> str:
    """The same for every process of a home, so that one that died is succeeded at once."""
    return f"{socket.gethostname()}:{home}"


def mark_storage(storage: Path, installation_id: str) -> None:
    """Leave the installation's name for other replicas to find; for the leader."""
    storage.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = storage_mark(storage)
    if _read(file) != installation_id:
        file.write_text(f"{installation_id}\n")


def check_storage(storage: Path, home: Path, installation: Installation) -> None:
    """Raises StorageNotSharedError while another replica leads whose storage is not ours."""
    leader = installation.leader
    if leader in (None, replica_name(home)) or _read(storage_mark(storage)) == installation.id:
        return
    raise StorageNotSharedError(
        f"{leader} serves the same database, and the storage {storage} is not the one it uses "
        f"(no mark of {installation.id} is in it); give all replicas one folder that all of their machines see "
        "by --storage"
    )


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None

"""Several services on one database: who is who, and whether all of them see the same storage.

Whoever first uses a storage leaves the installation's name there, and notes in the database where it is. A
replica that comes while another one leads must find that name in its own, else bundles and checkpoints would be on
two machines.
Where the name should be and is not, the storage is away: nothing is put in its place, and nothing removed.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Protocol

from service.errors import UnavailableError
from service.patience import awaited, begun
from service.store.leases import Installation
from workers.storage import MARK, Storage, StorageAwayError
from workers.storage_urls import join, open_storage


class StorageNotSharedError(Exception):
    """This replica's storage is not the one that the others use."""


class Notes(Protocol):
    """Of the store, what it knows of the storage."""

    async def installation_id(self) -> str: ...

    async def marked_storage(self) -> str | None: ...

    async def note_storage(self, url: str) -> None: ...


class Claim:
    """This process's word that the storage bears the installation's mark; kept for good once it was true."""

    def __init__(self, notes: Notes, url: str) -> None:
        self._notes, self._url = notes, url
        self._is_held = False
        self._marking: asyncio.Future[None] | None = None

    async def hold(self) -> None:
        """Leave the mark in a storage that is new to the installation. To be called before anything is put there.

        Raises UnavailableError where the storage fails, is away or belongs to another installation.
        """
        if self._is_held:
            return
        try:
            await self.take()
        except OSError as error:
            raise UnavailableError(str(error)) from error

    async def take(self) -> None:
        """As ``hold``, looked at again each time. Raises OSError.

        Where storage hangs it keeps one thread, however often that is tried.
        """
        name, marked = await self._notes.installation_id(), await self._notes.marked_storage()
        if self._marking is None or self._marking.done():
            self._marking = begun(partial(_mark, self._url, name, is_new=marked != self._url))
            # What it raises once nobody waits any more concerns nobody.
            self._marking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await awaited(asyncio.shield(self._marking))
        if marked != self._url:
            await self._notes.note_storage(self._url)
        self._is_held = True


def replica_name(home: Path) -> str:
    """The same for every process of a home, so that one that died is succeeded at once."""
    return f"{socket.gethostname()}:{home}"


def _mark(url: str, name: str, *, is_new: bool) -> None:
    storage = open_storage(url)
    found = storage_mark(storage)
    if found == name:
        return
    if found is not None:
        raise StorageAwayError(
            f"the storage {url} belongs to another installation, {found}; give this one another by --storage, or, "
            f"where that one is gone for good, remove {join(url, MARK)}: its files are removed then, too"
        )
    if not is_new:
        raise StorageAwayError(
            f"the storage {url} is away: it has borne the mark {MARK!r}, and does not now; mount its disk or bring it "
            f"back. Where it is lost for good, write {name} into the file {join(url, MARK)} to begin anew there"
        )
    storage.write(MARK, [f"{name}\n".encode()])


def storage_mark(storage: Storage) -> str | None:
    """The name of the installation whose storage this is, None where there is none. Raises OSError."""
    try:
        with storage.open(MARK) as file:
            return file.read(1000).decode(errors="replace").strip()
    except FileNotFoundError:
        return None


def check_storage(url: str, home: Path, installation: Installation) -> None:
    """Raises StorageNotSharedError while another replica leads whose storage is not ours."""
    leader = installation.leader
    if leader in (None, replica_name(home)) or _bears(open_storage(url), installation.id):
        return
    raise StorageNotSharedError(
        f"{leader} serves the same database, and the storage {url} is not the one it uses "
        f"(no mark of {installation.id} is in it); give all replicas one folder that all of their machines see, or one "
        "URL, by --storage"
    )


def _bears(storage: Storage, name: str) -> bool:
    try:
        return storage_mark(storage) == name
    except OSError:
        return False

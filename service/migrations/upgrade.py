"""Bringing a database to the newest migration."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError

from service.store.port import StoreError
from service.store.transactions import away_told

FOLDER = Path(__file__).parent


def upgrade(url: str) -> None:
    """Make or upgrade the tables; several processes may call it at once. Blocks; not from an event loop.

    Raises StoreError when the database was written by a newer version of the service or is none, DatabaseAwayError.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with away_told():
            command.upgrade(_config(url), "head")
    except CommandError as error:
        raise StoreError(
            f"the database was upgraded by a newer version of this service ({error}); "
            "install that version again, or restore a backup"
        ) from None
    except DatabaseError as error:
        if type(error.orig) is not sqlite3.DatabaseError:  # its subclasses tell of statements, not of the file
            raise
        raise StoreError(
            f"{parsed.database} cannot be read: {error.orig}; restore a backup of it, or give another file"
        ) from error


def head() -> str:
    """The newest migration."""
    found = ScriptDirectory.from_config(_config("")).get_current_head()
    assert found is not None
    return found


def knows(revision: str) -> bool:
    """Whether this version of the service has that migration."""
    return any(each.revision == revision for each in ScriptDirectory.from_config(_config("")).walk_revisions())


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["url"] = url
    return config

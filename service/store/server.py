"""What kind of database it is, for a person who wants to know whether it will do."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from service.store.database import Database


@dataclass(frozen=True, slots=True)
class Server:
    """``kind`` is its product and version; ``is_standby``: it follows another one and takes no writes."""

    kind: str
    is_standby: bool


async def read_server(database: Database) -> Server:
    """Ask the database for it. Raises DatabaseAwayError."""
    return await database.read(_server)


def _server(conn: Connection) -> Server:
    version = ".".join(str(part) for part in conn.dialect.server_version_info or ())
    if conn.dialect.name != "postgresql":
        return Server(f"SQLite {version}", is_standby=False)
    is_standby = bool(conn.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one())
    return Server(f"PostgreSQL {version}", is_standby)

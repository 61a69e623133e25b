"""Run by Alembic for each command."""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection, create_engine, event, make_url, text
from sqlalchemy.pool import NullPool

from service.store.schema import VERSION_TABLE, metadata
from service.store.sqlite import prepare_sqlite

ADVISORY_LOCK = 0x636F6E63


def run() -> None:
    """Migrate in one transaction; other processes that would do the same wait for it. Not from an event loop."""
    url = context.config.attributes["url"]
    if make_url(url).get_backend_name() == "sqlite":
        _run_on_sqlite(url)
    else:
        asyncio.run(_run_on_postgres(url))


def _run_on_sqlite(url: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    event.listen(engine, "connect", prepare_sqlite)
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as connection:
        _migrate(connection)
    engine.dispose()


async def _run_on_postgres(url: str) -> None:
    # Imported here: its driver is installed only where it is used.
    from service.store.postgres import postgres_engine

    engine = postgres_engine(url, is_pooled=False)
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL lock_timeout = 0"))
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
        await connection.run_sync(_migrate)
    await engine.dispose()


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()

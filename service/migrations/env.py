"""Run by Alembic for each command."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, event, make_url
from sqlalchemy.pool import NullPool

from service.store.schema import VERSION_TABLE, metadata
from service.store.sqlite import prepare_sqlite


def run() -> None:
    """Migrate with the synchronous driver, in one transaction."""
    url = make_url(context.config.attributes["url"])
    is_sqlite = url.get_backend_name() == "sqlite"
    engine = create_engine(url, poolclass=NullPool)
    if is_sqlite:
        event.listen(engine, "connect", prepare_sqlite)
        event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            version_table=VERSION_TABLE,
            render_as_batch=is_sqlite,
            transactional_ddl=True,
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()

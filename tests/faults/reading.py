"""One consistent look at a service's database, SQLite or PostgreSQL, without the service's own code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

T = TypeVar("T")

WAIT_S = 30.0


def read_database(url: str, work: Callable[[Connection], T]) -> T:
    """What ``work`` returns, from one transaction that cannot write. Blocks, also within an event loop."""
    if make_url(url).get_backend_name() == "sqlite":
        return _read_file(make_url(url).database or "", work)
    # In a thread of its own: the driver is asynchronous, and this one may have a loop already.
    with ThreadPoolExecutor(max_workers=1) as apart:
        return apart.submit(lambda: asyncio.run(_read_server(url, work))).result()


def _read_file(file: str, work: Callable[[Connection], T]) -> T:
    engine = create_engine(
        f"sqlite:///file:{file}?mode=ro&uri=true", connect_args={"timeout": WAIT_S}, poolclass=NullPool
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")  # the driver itself begins none for what only reads
        return work(connection)


async def _read_server(url: str, work: Callable[[Connection], T]) -> T:
    engine = create_async_engine(url, connect_args={"timeout": WAIT_S}, poolclass=NullPool)
    try:
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        async with engine.execution_options(**options).connect() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()

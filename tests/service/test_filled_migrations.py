"""Each migration on a database that is in use: every table of the one before it has rows, and keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from alembic import command as alembic
from alembic.config import Config
from alembic.script import ScriptDirectory

from service.cli.database import move
from service.migrations.upgrade import FOLDER, upgrade
from service.store.database import Database
from service.store.schema import VERSION_TABLE, metadata
from tests.service.conftest import DATABASES
from tests.service.filled import Content, content, fill
from tests.service.postgres import PostgresServer

T = TypeVar("T")

RENAMED = {"0005": ("idempotency_keys", "job_id", "made_id")}
"""Table, and how a column of it was and is called."""


def migrate(url: str, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["url"] = url
    alembic.upgrade(config, revision)


def revisions() -> list[str]:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    return [each.revision for each in ScriptDirectory.from_config(config).walk_revisions()][::-1]


def within(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    async def run() -> T:
        database = Database(url)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


def filled(url: str) -> Content:
    async def work(database: Database) -> Content:
        await database.write_quietly(fill)
        return await database.read(content)

    return within(url, work)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database without tables."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.empty("filled")
    return f"sqlite:///{tmp_path / 'filled.db'}"


def test_every_migration_keeps_the_rows_of_a_database_in_use(url: str) -> None:
    first, *others = revisions()
    migrate(url, first)
    before = filled(url)
    for revision in others:
        migrate(url, revision)
        now = within(url, lambda database: database.read(content))
        if revision in RENAMED:
            table, old, new = RENAMED[revision]
            before[table] = [{new if name == old else name: row[name] for name in row} for row in before[table]]
        assert before.keys() <= now.keys(), revision
        for table in before.keys() - {VERSION_TABLE}:
            assert before[table], (revision, table)
            kept = [{name: row[name] for name in row.keys() & before[table][0].keys()} for row in now[table]]
            assert kept == before[table], (revision, table)
        before = filled(url)
    assert before.keys() - {VERSION_TABLE} == metadata.tables.keys()
    for table in metadata.sorted_tables:
        assert before[table.name][0].keys() == set(table.columns.keys())


@pytest.mark.postgres
def test_every_row_of_every_table_moves_to_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    source, target = f"sqlite:///{home / 'concertina.db'}", postgres.empty("all_moved")
    upgrade(source)
    before = filled(source)
    move(target, home)
    now = within(target, lambda database: database.read(content))
    for found in (before, now):
        # The leader's lease is of a service that is no more.
        (installation,) = found["installation"]
        found["installation"] = [{k: v for k, v in installation.items() if k not in ("leader", "lease_until")}]
    assert now == before

"""Migrations build what the code expects, however many processes run them at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, func, inspect, select, text

from service.migrations.upgrade import head, upgrade
from service.store.database import Database
from service.store.port import StoreError
from service.store.schema import REVISION, VERSION_TABLE, installation, metadata
from tests.service.conftest import DATABASES

ROOT = Path(__file__).resolve().parents[2]
NUM_AT_ONCE = 4


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.mark.anyio
async def test_a_fresh_upgrade_equals_the_schema(database_url: str) -> None:
    def compare(connection: Connection) -> None:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
        found = inspect(connection)
        for table in metadata.tables.values():
            stored = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
            assert stored == {column.name: column.nullable for column in table.columns}
            assert {
                fk["constrained_columns"][0]: fk["options"].get("ondelete") for fk in found.get_foreign_keys(table.name)
            } == {next(iter(fk.columns)).name: fk.ondelete for fk in table.foreign_key_constraints}

    database = Database(database_url)
    await database.read(compare)
    await database.close()


def test_the_code_expects_the_newest_migration(tmp_path: Path) -> None:
    assert head() == REVISION


def test_upgrading_again_keeps_everything(tmp_path: Path) -> None:
    file = tmp_path / "home" / "a.db"
    upgrade(url_of(file))
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        before = connection.execute(text("SELECT * FROM installation")).one()
        upgrade(url_of(file))
        assert connection.execute(text("SELECT * FROM installation")).one() == before
    engine.dispose()


@pytest.mark.parametrize("kind", DATABASES)
def test_processes_that_migrate_at_once_make_one_installation(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres").empty("raced") if kind == "postgres" else url_of(tmp_path / "a.db")
    command = [sys.executable, "-m", "tests.service.stand_ins.migrate", url, str(NUM_AT_ONCE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert (done.stdout.split(), done.stderr) == (["0"] * NUM_AT_ONCE, "")
    assert asyncio.run(num_installations(url)) == 1


@pytest.mark.parametrize("steps", [1, 9, 16])
@pytest.mark.parametrize("kind", DATABASES)
def test_an_upgrade_that_is_killed_leaves_the_database_as_it_was(
    kind: str, steps: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also after the last of the migrations, before they are committed."""
    url = (
        request.getfixturevalue("postgres").empty(f"killed_{steps}")
        if kind == "postgres"
        else url_of(tmp_path / "a.db")
    )
    command = [sys.executable, "-m", "tests.service.stand_ins.dying_migration", url, str(steps)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not asyncio.run(has_tables(url))
    upgrade(url)
    assert asyncio.run(num_installations(url)) == 1


async def has_tables(url: str) -> bool:
    database = Database(url)
    found = await database.has_tables()
    await database.close()
    return found


async def num_installations(url: str) -> int:
    database = Database(url)
    count = select(func.count()).select_from(installation)
    found = await database.read(lambda conn: conn.execute(count).scalar_one())
    await database.close()
    return found


def test_a_database_of_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    upgrade(url_of(file))
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer version"):
        upgrade(url_of(file))
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one() == "9999"
    engine.dispose()

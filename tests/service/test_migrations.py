"""Migrations build what the code expects, however many processes run them at once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from service.migrations.upgrade import head, upgrade
from service.store.port import StoreError
from service.store.schema import REVISION, VERSION_TABLE, metadata


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def test_a_fresh_upgrade_equals_the_schema(migrated_file: Path) -> None:
    engine = create_engine(f"sqlite:///{migrated_file}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
        found = inspect(connection)
        for table in metadata.tables.values():
            stored = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
            assert stored == {column.name: column.nullable for column in table.columns}
            assert {
                fk["constrained_columns"][0]: fk["options"].get("ondelete") for fk in found.get_foreign_keys(table.name)
            } == {next(iter(fk.columns)).name: fk.ondelete for fk in table.foreign_key_constraints}
    engine.dispose()


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


def test_processes_that_migrate_at_once_make_one_installation(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=upgrade, args=(url_of(file),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM installation")).scalar_one() == 1
    engine.dispose()


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

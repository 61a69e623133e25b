"""Carries out the commands about the database itself; no service is needed for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.markup import escape

from service.cli.connection import home_of
from service.cli.failures import SERVER_ERROR, CommandError
from service.cli.output import say
from service.migrations.upgrade import head, upgrade
from service.settings import Settings, load_settings
from service.store.copying import back_up, move_to_postgres
from service.store.port import StoreError
from service.supervise.lock import database_lock
from service.supervise.serve import last_settings


def back_up_to(target: Path, home: Path | None) -> None:
    """Copy the database of a home, also while it is served. Raises CommandError, SettingsError."""
    file = _file_of(
        last_settings(home_of(home)), "PostgreSQL has a tool for it: pg_dump --format=custom --file=FILE DATABASE"
    )
    try:
        back_up(file, target)
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}; name a file that is not there yet") from None
    except StoreError as error:
        raise CommandError(str(error), SERVER_ERROR) from None
    say(f"{escape(str(file))} is copied to {escape(str(target))}")


def upgrade_database(home: Path | None, database: str | None) -> None:
    """Bring a database to the newest migration, as `serve` would. Raises CommandError, SettingsError."""
    place = home_of(home)
    settings = load_settings({"home": place.path, "database": database}) if database else last_settings(place)
    try:
        upgrade(settings.database_url)
    except StoreError as error:
        raise CommandError(str(error), SERVER_ERROR) from None
    say(f"the database is at migration {head()}, the newest")


def move(url: str, home: Path | None) -> None:
    """Copy the SQLite database of a home to PostgreSQL; nobody may serve it meanwhile.

    Raises CommandError, SettingsError, DatabaseServedError.
    """
    place = home_of(home)
    target = load_settings({"home": place.path, "database": url})
    if target.database_file is not None:
        raise CommandError("the database to move to is SQLite; give postgresql+asyncpg://USER:PASSWORD@HOST/NAME")
    file = _file_of(last_settings(place), "it is no SQLite database; pg_dump and pg_restore move PostgreSQL")
    if not file.is_file():
        raise CommandError(f"there is no database at {file}; start the service once, or name its --home")
    with database_lock(file):
        try:
            upgrade(f"sqlite:///{file}")
            upgrade(target.database_url)
            numbers = asyncio.run(move_to_postgres(file, target.database_url))
        except StoreError as error:
            raise CommandError(str(error), SERVER_ERROR) from None
    rows = ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
    say(f"moved: {escape(rows)}")
    say(f"from now on: `concertina serve --database URL`, or `database = URL` in {escape(str(place.path))}/config.toml")
    say(f"{escape(str(file))} is as it was; remove it once all is well")


def _file_of(settings: Settings, otherwise: str) -> Path:
    if settings.database_file is None:
        raise CommandError(otherwise)
    return settings.database_file

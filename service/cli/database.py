"""Carries out the commands about the database itself; no service is needed for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.markup import escape

from service.addresses import SQLITE
from service.cli.connection import home_of
from service.cli.failures import CommandError
from service.cli.options import Form
from service.cli.output import answering, say, show
from service.migrations.upgrade import head, upgrade
from service.settings import Settings, load_settings
from service.store.copying import back_up, move_to_postgres
from service.supervise.home import CONFIG
from service.supervise.lock import database_lock
from service.supervise.serve import last_settings


def back_up_to(target: Path, home: Path | None, form: Form = Form.TEXT) -> None:
    """Copy the database of a home, also while it is served. Raises CommandError, SettingsError, StoreError."""
    settings = last_settings(home_of(home))
    file = _file_of(settings, "PostgreSQL has a tool for it: pg_dump --format=custom --file=FILE DATABASE")
    try:
        back_up(file, target)
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}; name a file that is not there yet") from None
    told = f"{escape(str(file))} is copied to {escape(str(target))}"
    show(form, {"database": str(file), "backup": str(target)}, told)


def upgrade_database(home: Path | None, database: str | None, form: Form = Form.TEXT) -> None:
    """Bring a database to the newest migration, as `serve` would; the home that is to hold it is made.

    Raises CommandError, SettingsError, HomeError, StoreError.
    """
    place = home_of(home)
    settings = load_settings({"home": place.path, "database": database}) if database else last_settings(place)
    file = settings.database_file
    if file is not None and file.is_relative_to(place.path):
        place.prepare()  # else the folder would be taken for somebody else's
    upgrade(settings.database_url)
    show(form, {"migration": head()}, f"the database is at migration {head()}, the newest")


def move(url: str, home: Path | None, form: Form = Form.TEXT) -> None:
    """Copy the SQLite database of a home to PostgreSQL; nobody may serve it meanwhile.

    Raises CommandError, SettingsError, DatabaseServedError, StoreError.
    """
    place = home_of(home)
    target = load_settings({"home": place.path, "database": url})
    if target.database_file is not None:
        raise CommandError("the database to move to is SQLite; give postgresql+asyncpg://USER:PASSWORD@HOST/NAME")
    file = _file_of(last_settings(place), "it is no SQLite database; pg_dump and pg_restore move PostgreSQL")
    with answering(form) as answer:
        with database_lock(file):
            upgrade(f"{SQLITE}{file}")
            upgrade(target.database_url)
            numbers = asyncio.run(move_to_postgres(file, target.database_url))
        say(f"moved: {', '.join(f'{number} {name}' for name, number in numbers.items() if number)}")
        config = escape(str(place.path / CONFIG))
        say(f"from now on: `concertina serve --database URL`, or `database = URL` in {config}")
        say(f"{escape(str(file))} is as it was; remove it once all is well")
        answer({"database": str(file), "rows": numbers})


def _file_of(settings: Settings, otherwise: str) -> Path:
    """The SQLite file of these settings; ``otherwise`` says what to do about another database. Raises CommandError."""
    file = settings.database_file
    if file is None:
        raise CommandError(otherwise)
    if not file.is_file():
        raise CommandError(f"there is no database at {file}; start the service once, or name its --home")
    return file

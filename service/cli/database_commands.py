"""Signatures of `concertina db`; what they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import Form, FormOption, HomeOption

db = typer.Typer(name="db", help="Back the database up, upgrade it, move it to PostgreSQL.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.add_typer(db, rich_help_panel="Service")


@db.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Takes the copy; must not be there yet.")],
    home: HomeOption = None,
    form: FormOption = Form.TEXT,
) -> None:
    """Copy the SQLite database of a home, also while it is served."""
    from service.cli.database import back_up_to

    back_up_to(file, home, form)


@db.command()
def upgrade(
    home: HomeOption = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="Database.", show_default="the home's")
    ] = None,
    form: FormOption = Form.TEXT,
) -> None:
    """Bring the database to this version's tables; `serve` does so by itself."""
    from service.cli.database import upgrade_database

    upgrade_database(home, database, form)


@db.command()
def migrate(
    url: Annotated[str, typer.Argument(metavar="URL", help="postgresql+asyncpg://USER:PASSWORD@HOST/NAME, empty.")],
    home: HomeOption = None,
    form: FormOption = Form.TEXT,
) -> None:
    """Copy everything from the SQLite database of a home to PostgreSQL."""
    from service.cli.database import move

    move(url, home, form)

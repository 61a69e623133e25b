"""Signatures of the commands about nodes; what they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import Form, FormOption, HomeOption, UrlOption

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Name, id, or beginning of an id; `concertina cluster` lists them.")
]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why; the cluster page shows it.")]

node = typer.Typer(name="node", help="Take machines out of use, and back.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.add_typer(node, rich_help_panel="Service")


@node.command("drain")
def drain(
    name: NodeArgument,
    reason: ReasonOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Start no more workers there, and move away those that are there."""
    _mark(name, "drain", reason, output, url, home)


@node.command("quarantine")
def quarantine(
    name: NodeArgument,
    reason: ReasonOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """As drain, for a machine that is thought to be broken."""
    _mark(name, "quarantine", reason, output, url, home)


@node.command("uncordon")
def uncordon(
    name: NodeArgument,
    reason: ReasonOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Use it again; losses until now no longer count against it."""
    _mark(name, "uncordon", reason, output, url, home)


def _mark(name: str, verb: str, reason: str | None, output: Form, url: str | None, home: Path | None) -> None:
    from service.cli import changing
    from service.cli.connection import connect

    with connect(url, home) as client:
        changing.mark_node(client, name, verb, reason, output)

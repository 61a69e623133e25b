"""Signatures of the commands about configurations; what they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import Form, FormOption, HomeOption, UrlOption, YesOption

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the configuration.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="JOB.YAML", help="A job spec, whose name it gets; `code: ./dir` sends a folder.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change the spec: --set optimizer.lr=1e-3.")
]

configuration = typer.Typer(
    name="configuration", help="Job specs under a name, which sweeps make better.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.add_typer(configuration, rich_help_panel="Jobs")


@configuration.command("put")
def put(
    file: FileArgument,
    settings: SetOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Make a job spec the next version of the configuration of its name, or the first."""
    from service.cli import configurations
    from service.cli.connection import connect

    with connect(url, home) as client:
        configurations.put(client, file, settings or [], output)


@configuration.command("list")
def list_all(output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """List configurations by name."""
    from service.cli import configurations
    from service.cli.connection import connect

    with connect(url, home) as client:
        configurations.list_all(client, output)


@configuration.command("get")
def get(name: NameArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Print one configuration as a job file."""
    from service.cli import configurations
    from service.cli.connection import connect

    with connect(url, home) as client:
        configurations.show_one(client, name, output)


@configuration.command("history")
def history(name: NameArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Tell which versions were replaced, when, by whom and on what evidence."""
    from service.cli import configurations
    from service.cli.connection import connect

    with connect(url, home) as client:
        configurations.show_history(client, name, output)


@configuration.command("delete")
def delete(
    name: NameArgument,
    yes: YesOption = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Remove a configuration with its history."""
    from service.cli import configurations
    from service.cli.connection import connect

    with connect(url, home) as client:
        configurations.delete(client, name, is_sure=yes, form=output)

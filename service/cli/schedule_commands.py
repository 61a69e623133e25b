"""Signatures of the commands about schedules; what they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import FollowOption, Form, FormOption, HomeOption, UrlOption, YesOption

ScheduleArgument = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Name, id, or beginning of an id.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="SCHEDULE.YAML", help="The schedule spec; `code: ./dir` in its job sends a folder.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help='Change the spec: --set cron="0 3 * * *".')
]
CountOption = Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")]

schedule = typer.Typer(name="schedule", help="Start jobs and sweeps at times of day.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.add_typer(schedule, rich_help_panel="Jobs")


@schedule.command("create")
def create(
    file: FileArgument,
    settings: SetOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Make a schedule."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.create(client, file, settings or [], output)


@schedule.command("replace")
def replace(
    name: ScheduleArgument,
    file: FileArgument,
    settings: SetOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Exchange the whole spec of a schedule."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.replace(client, name, file, settings or [], output)


@schedule.command("validate")
def validate(
    file: FileArgument,
    settings: SetOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Tell whether a spec would be taken, with every default in JSON; its code is sent, and nothing is made."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.validate(client, file, settings or [], output)


@schedule.command("list")
def list_all(output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """List schedules, newest first."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.list_all(client, output)


@schedule.command("show")
def show(
    name: ScheduleArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None
) -> None:
    """Show one schedule: when it runs next, what it starts."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.show_one(client, name, output)


@schedule.command("next")
def upcoming(
    name: ScheduleArgument,
    count: CountOption = 10,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Print its next times, in its zone and here, and what changes of the clocks do to them."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.show_upcoming(client, name, count, output)


@schedule.command("runs")
def runs(
    name: ScheduleArgument,
    count: CountOption = 20,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Tell what became of its times, the latest first."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.show_runs(client, name, count, output)


@schedule.command("pause")
def pause(
    name: ScheduleArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None
) -> None:
    """Start nothing until it is resumed."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.command(client, name, "pause", output)


@schedule.command("resume")
def resume(
    name: ScheduleArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None
) -> None:
    """Go on from now; times that passed meanwhile are not made good."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.command(client, name, "resume", output)


@schedule.command("trigger")
def trigger(
    name: ScheduleArgument,
    follow: FollowOption = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Run it now, by its own rule of overlap; with `--follow` show what that starts until it ends."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        raise typer.Exit(schedules.trigger(client, name, follow=follow, form=output))


@schedule.command("delete")
def delete(
    name: ScheduleArgument,
    yes: YesOption = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Remove a schedule with its history; what it started stays."""
    from service.cli import schedules
    from service.cli.connection import connect

    with connect(url, home) as client:
        schedules.delete(client, name, is_sure=yes, form=output)

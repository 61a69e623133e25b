"""Signatures of the commands about sweeps; what they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import FollowOption, Form, FormOption, HomeOption, UrlOption

SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="Id, beginning of an id, or name (the newest).")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="SWEEP.YAML", help="The sweep spec; `code: ./dir` in its job sends a folder.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change the spec: --set trials=64.")
]
CountOption = Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")]
StateOption = Annotated[str | None, typer.Option("--state", help="Only those in this state, such as FAILED.")]
TrialsArgument = Annotated[int, typer.Argument(metavar="TRIALS", min=1, help="How many it may have in all.")]
ConfigurationArgument = Annotated[
    str | None, typer.Argument(metavar="CONFIGURATION", help="Default: the one that the sweep names or came from.")
]

sweep = typer.Typer(name="sweep", help="Search for better learning rates, batch sizes and more.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.add_typer(sweep, rich_help_panel="Jobs")


@sweep.command("submit")
def submit(
    file: FileArgument,
    settings: SetOption = None,
    follow: FollowOption = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Make a sweep, which runs at once."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        raise typer.Exit(sweeps.submit(client, file, settings or [], follow=follow, form=output))


@sweep.command("validate")
def validate(
    file: FileArgument,
    settings: SetOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Tell whether a spec would be taken, with every default; nothing is started."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.validate(client, file, settings or [], output)


@sweep.command("estimate")
def estimate(
    file: FileArgument,
    settings: SetOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Tell what a sweep would cost, by earlier jobs of its code; nothing is started."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.estimate(client, file, settings or [], output)


@sweep.command("list")
def list_all(output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """List sweeps, newest first."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.list_all(client, output)


@sweep.command("get")
def get(
    name: SweepArgument,
    follow: FollowOption = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Show one sweep: how far it is, what is best so far."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        if follow:
            raise typer.Exit(sweeps.follow(client, name, output))
        sweeps.show_one(client, name, output)


@sweep.command("trials")
def trials(
    name: SweepArgument,
    state: StateOption = None,
    count: CountOption = 1000,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """List its trials by number."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.show_trials(client, name, state, count, output)


@sweep.command("report")
def report(name: SweepArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Tell what it found: each improvement and its cost, what mattered, where trials ended."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.show_report(client, name, output)


@sweep.command("pause")
def pause(name: SweepArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Save the trials that run, release their workers, start none."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.command(client, name, "pause", output)


@sweep.command("resume")
def resume(name: SweepArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Go on with a paused sweep."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.command(client, name, "resume", output)


@sweep.command("stop")
def stop(name: SweepArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """End it with what it has found; `extend` lets it go on. Of one that has ended, stop its promotion."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.stop(client, name, output)


@sweep.command("retry-failed")
def retry_failed(
    name: SweepArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None
) -> None:
    """Let trials that failed go on from their last checkpoints."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.command(client, name, "retry-failed", output)


@sweep.command("promote")
def promote(
    name: SweepArgument,
    configuration: ConfigurationArgument = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Hold its best trials against a configuration on new seeds; replace it if one is better, or the cheaper."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.promote(client, name, configuration, output)


@sweep.command("extend")
def extend(
    name: SweepArgument,
    num_trials: TrialsArgument,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Allow more trials; one that had ended goes on."""
    from service.cli import sweeps
    from service.cli.connection import connect

    with connect(url, home) as client:
        sweeps.extend(client, name, num_trials, output)

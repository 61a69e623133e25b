"""Signatures of the commands about jobs; what they do is imported when one is called.

Typer makes a command's options of its parameters, so some have more of them than a function should.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import FollowOption, Form, FormOption, HomeOption, JobArgument, UrlOption

PANEL = "Jobs"
LOOK = "Looking at jobs"
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why; the timeline shows it.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    changing: list[Callable[..., None]] = [submit, scale, cancel, pause, resume, retry, download]
    looking: list[Callable[..., None]] = [
        jobs,
        show,
        logs,
        metrics,
        timeline,
        explain,
        report,
        compare,
        checkpoints,
        cluster,
    ]
    for panel, commands in ((PANEL, changing), (LOOK, looking)):
        for command in commands:
            app.command(command.__name__, rich_help_panel=panel)(command)


def submit(
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="The job spec; `code: ./dir` sends a folder along.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change the spec: --set optimizer.lr=3e-4.")
    ] = None,
    follow: FollowOption = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Submit a job."""
    from service.cli.connection import connect
    from service.cli.submit import submit_file

    with connect(url, home) as client:
        raise typer.Exit(submit_file(client, file, settings or [], follow=follow, form=output))


def jobs(
    state: Annotated[str | None, typer.Option("--state", help="Only jobs in this state, such as RUNNING.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Only jobs with this label, as name:value.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest.")] = 50,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """List jobs, newest first."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.list_jobs(client, state, label, limit, output)


def show(
    job: JobArgument,
    follow: FollowOption = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Show one job: state, progress, workers."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        if follow:
            raise typer.Exit(looking.follow(client, job, output))
        looking.show_job(client, job, output)


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this worker's.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Only the last lines.")] = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Print what the job's workers wrote."""
    from service.cli import logs as log_output
    from service.cli.connection import connect

    with connect(url, home) as client:
        selection = log_output.Selection(rank=rank, tail=tail, is_followed=follow)
        log_output.print_logs(client, job, selection, output)


def metrics(
    job: JobArgument,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Telemetry keys, with commas: loss,samples_per_s,eval.accuracy.")
    ] = None,
    points: Annotated[int, typer.Option("--points", min=2, help="At most so many points.")] = 20,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Print telemetry over the steps."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.show_metrics(client, job, keys, points, output)


def timeline(job: JobArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Tell what changed while the job ran, who changed it, and what it cost."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.show_timeline(client, job, output)


def explain(job: JobArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Tell why a job waits or failed, and what to do."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.explain_job(client, job, output)


def report(job: JobArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Tell what each optimisation did to a job, measured in its own steps."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.report_job(client, job, output)


def compare(
    first: JobArgument,
    others: Annotated[list[str], typer.Argument(metavar="JOB...", help="The jobs to compare it with.")],
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Compare jobs: where their specs differ, and how they ended."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.compare_jobs(client, [first, *others], output)


def checkpoints(
    job: JobArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None
) -> None:
    """List a job's checkpoints."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.list_checkpoints(client, job, output)


def download(
    job: JobArgument,
    step: Annotated[int | None, typer.Option("--step", help="Of this checkpoint; default: the newest.")] = None,
    output_folder: Annotated[Path, typer.Option("--output", metavar="DIR", help="Where to put it.")] = Path(),
    files: Annotated[bool, typer.Option("--files", help="What the code wrote to $CONCERTINA_OUTPUT, too.")] = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Download the weights of a checkpoint (safetensors)."""
    from service.cli.connection import connect
    from service.cli.downloads import Wanted, download_job

    with connect(url, home) as client:
        download_job(client, job, Wanted(step=step, folder=output_folder, has_files=files), output)


def scale(
    job: JobArgument,
    workers: Annotated[str, typer.Argument(metavar="N", help="A number, a range such as 1-4, or auto.")],
    reason: ReasonOption = None,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Change the number of workers while the job runs."""
    from service.cli import changing
    from service.cli.connection import connect

    with connect(url, home) as client:
        changing.scale_job(client, job, workers, reason, output)


def cancel(job: JobArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Stop a job for good, without a checkpoint."""
    from service.cli import changing
    from service.cli.connection import connect

    with connect(url, home) as client:
        changing.command_job(client, job, "cancel", output)


def pause(job: JobArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Save a job and free its workers."""
    from service.cli import changing
    from service.cli.connection import connect

    with connect(url, home) as client:
        changing.command_job(client, job, "pause", output)


def resume(job: JobArgument, output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Go on with a paused job."""
    from service.cli import changing
    from service.cli.connection import connect

    with connect(url, home) as client:
        changing.command_job(client, job, "resume", output)


def retry(
    job: JobArgument,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin anew, not at the last checkpoint.")] = False,
    output: FormOption = Form.TEXT,
    url: UrlOption = None,
    home: HomeOption = None,
) -> None:
    """Run a failed or cancelled job again, from its last checkpoint on."""
    from service.cli import changing
    from service.cli.connection import connect

    with connect(url, home) as client:
        changing.retry_job(client, job, from_start=from_start, form=output)


def cluster(output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Show the machines, what is free on them and what runs where."""
    from service.cli import looking
    from service.cli.connection import connect

    with connect(url, home) as client:
        looking.show_cluster(client, output)

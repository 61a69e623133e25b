"""The command line: what it offers, and how each end becomes an exit code.

Signatures only: what a command does is imported when it is called, so that `--help` is quick and no
command but `serve`, `doctor` and `demo` comes near Ray or torch.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from service.cli import (
    configuration_commands,
    database_commands,
    job_commands,
    node_commands,
    schedule_commands,
    service_commands,
    sweep_commands,
)

EXIT_CODES = """Exit codes: 0 done, 1 the job failed, 2 usage, 3 not authorised, 4 not found, 5 server error,
130 interrupted (the job goes on)."""

app = typer.Typer(
    name="concertina",
    help="Train plain PyTorch elastically: submit a job, resize it while it trains, watch it on a page.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
service_commands.register(app)
database_commands.register(app)
job_commands.register(app)
sweep_commands.register(app)
configuration_commands.register(app)
schedule_commands.register(app)
node_commands.register(app)


def main() -> NoReturn:
    """The console script."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from service.cli.failures import describe

        described = describe(error)
        if described is None:
            raise
        sys.exit(described)
    sys.exit(0)


if __name__ == "__main__":
    main()

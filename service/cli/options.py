"""Options that many commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Form(StrEnum):
    """How a command prints what it found."""

    TEXT = "text"
    JSON = "json"


FormOption = Annotated[Form, typer.Option("-o", "--format", help="How to print: text, or json for programs.")]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="Address of the service; default: the one that serves the home directory here."),
]
HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Home directory of the service.", show_default="~/.concertina")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id, beginning of an id, or name (the newest).")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Show it until it ends; Ctrl-C leaves it running.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

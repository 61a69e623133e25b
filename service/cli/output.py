"""Prints: tables and sentences for people, JSON for programs, complaints on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from service.cli.options import Form

PIPED_WIDTH = 200  # without a terminal: wide enough that no line is broken


def console(*, is_error: bool = False) -> Console:
    """A console for stdout or stderr as it is now."""
    stream = sys.stderr if is_error else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPED_WIDTH, highlight=False, soft_wrap=True)


def complain(markup: str, *, is_detail: bool = False) -> None:
    """Tell on stderr that something went wrong; ``markup`` is rich's, with foreign text escaped."""
    console(is_error=True).print(markup if is_detail else f"[red]error:[/red] {markup}")


def say(markup: str) -> None:
    """A line for a person; ``markup`` is rich's, with foreign text escaped."""
    console().print(markup)


def print_json(value: Any, stream: TextIO | None = None, *, indent: int | None = 2) -> None:
    """One JSON document on stdout, or on another stream; without ``indent`` on one line."""
    out = stream or sys.stdout
    out.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    out.flush()


def show(form: Form, document: Any, text: RenderableType) -> None:
    """A command's one answer in the form that was asked for; ``text`` is rich's markup, a table or both."""
    if form is Form.JSON:
        print_json(document)
    else:
        console().print(text)


@contextmanager
def answering(form: Form) -> Iterator[Callable[[Any], None]]:
    """For a command that tells people what it does, line by line: gives what takes its answer as a document.

    In JSON the lines go to stderr, those of other threads too, so that stdout has the document alone.
    """
    if form is Form.TEXT:
        yield lambda document: None
        return
    stdout = sys.stdout

    with redirect_stdout(sys.stderr):
        yield lambda document: print_json(document, stdout)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A plain table; cells are foreign text, taken literally."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values beside each other; values are foreign text, taken literally."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, escape(value))
    return made

"""Prints logs, once or as they grow."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.markup import escape

from service.cli.follow import ENDED
from service.cli.options import Form
from service.cli.output import console, print_json
from service.client import Client, Json, LogPart

ASK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which part of the logs: one rank or all, the last lines or all; ``is_followed``: until the job has ended."""

    rank: int | None
    tail: int | None
    is_followed: bool


def print_logs(
    client: Client, reference: str, selection: Selection, form: Form, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Print a job's logs; followed ones until the job has ended and its last line is there."""
    job = client.find_job(reference)
    if selection.is_followed:
        _follow(client, job, selection, form, sleep)
    elif selection.tail is not None:
        _print(client.logs(job["id"], rank=selection.rank, tail=selection.tail), job["id"], selection, form)
    else:
        _print_whole(client, job["id"], selection, form)


def _print_whole(client: Client, job_id: str, selection: Selection, form: Form) -> None:
    """The log up to where it ends now: an answer has about a megabyte of it."""
    end = client.logs(job_id, tail=0).next_offset
    part = LogPart("", 0)
    texts = []
    while part.next_offset < end:
        part = client.logs(job_id, rank=selection.rank, offset=part.next_offset)
        if not part.text:
            break
        if form is Form.TEXT:
            _print(part, job_id, selection, form)
        else:
            texts.append(part.text)
    if form is not Form.TEXT:
        _print(LogPart("".join(texts), part.next_offset), job_id, selection, form)


def _follow(client: Client, job: Json, selection: Selection, form: Form, sleep: Callable[[float], None]) -> None:
    part = client.logs(job["id"], rank=selection.rank, tail=selection.tail)
    _print(part, job["id"], selection, form)
    while True:
        # The state is asked before the log: what was written before the end is then printed in any case.
        has_ended = client.job(job["id"])["state"] in ENDED
        part = client.logs(job["id"], rank=selection.rank, offset=part.next_offset)
        if part.text:
            _print(part, job["id"], selection, form)
        if has_ended and not part.text:
            console(is_error=True).print(f"[dim]{escape(job['name'])} has ended[/dim]")
            return
        if not part.text:
            sleep(ASK_EVERY_S)


def _print(part: LogPart, job_id: str, selection: Selection, form: Form) -> None:
    """A piece as text or as a document; documents that follow each other take a line each."""
    if form is Form.TEXT:
        _write(part.text)
        return
    document = {"job": job_id, "rank": selection.rank, "text": part.text, "next_offset": part.next_offset}
    print_json(document, indent=None if selection.is_followed else 2)


def _write(text: str) -> None:
    # Control characters of a job's output would steer this terminal.
    sys.stdout.write("".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text))
    sys.stdout.flush()

"""Commands that change a job (size, pause, cancel, again) or what a node is used for."""

from __future__ import annotations

import re
from typing import Any

from rich.markup import escape

from service import words
from service.cli.failures import CommandError
from service.cli.options import Form
from service.cli.output import show
from service.client import Client


def scale_job(client: Client, reference: str, workers: str, reason: str | None, form: Form) -> None:
    """Ask for another number of workers. Raises CommandError for what is neither number, range nor ``auto``."""
    wanted = parse_workers(workers)
    job = client.scale(client.find_job(reference)["id"], wanted, reason)
    counts = job["workers"]
    text = f"[bold]{escape(job['name'])}[/bold]: {words.workers(counts)} workers now, {counts['desired']} wanted"
    show(form, job, text)


def parse_workers(text: str) -> int | str | dict[str, Any]:
    """``3``, ``1-4`` or ``auto`` as the REST interface takes it. Raises CommandError."""
    if text == "auto":
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    found = re.fullmatch(r"(\d+)(?:-|\.\.|:)(\d+)", text, flags=re.ASCII)
    if not found:
        raise CommandError(f"{text!r} is no number of workers; give 3, a range such as 1-4, or auto")
    return {"min": int(found[1]), "max": int(found[2])}


def command_job(client: Client, reference: str, verb: str, form: Form) -> None:
    """Cancel, pause or resume a job."""
    job = client.command(client.find_job(reference)["id"], verb)
    _tell(job, form)


def retry_job(client: Client, reference: str, *, from_start: bool, form: Form) -> None:
    """Run an ended job again."""
    job = client.command(client.find_job(reference)["id"], "retry", **({"from": "start"} if from_start else {}))
    _tell(job, form)


def mark_node(client: Client, reference: str, verb: str, reason: str | None, form: Form) -> None:
    """``drain``, ``quarantine`` or ``uncordon`` a node."""
    node_id = client.find_node(reference)["id"]
    node = next(each for each in client.mark_node(node_id, verb, reason)["nodes"] if each["id"] == node_id)
    why = f": {escape(node['duty_reason'])}" if node["duty_reason"] else ""
    left = f"; {words.plural(len(node['workers']), 'worker')} there" if node["workers"] else ""
    show(form, node, f"[bold]{escape(node['name'])}[/bold] ({node_id[:12]}): {node['duty']}{why}{left}")


def _tell(job: dict[str, Any], form: Form) -> None:
    show(form, job, f"[bold]{escape(job['name'])}[/bold] ({job['id']}): {words.state(job['state']).lower()}")

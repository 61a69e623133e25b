"""Commands about configurations: what they ask of the service and how they tell it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer
import yaml
from rich.markup import escape

from service import configuration_words, words
from service.cli.documents import DocumentError, apply_settings
from service.cli.failures import CommandError
from service.cli.options import Form
from service.cli.output import console, show, table
from service.cli.submit import code_folder, read_spec_file, send_code
from service.client import Client


def put(client: Client, file: Path, settings: list[str], form: Form) -> None:
    """Make the job of a file the next version of the configuration of its name.

    Raises DocumentError, PackingError and what the client raises.
    """
    spec = apply_settings(read_spec_file(file, "job", "name: ..., entrypoint: ..."), settings)
    if not isinstance(spec.get("name"), str):
        raise DocumentError(f"{file.name}: name is missing; it becomes the name of the configuration")
    if (folder := code_folder(spec, file)) is not None:
        send_code(client, spec, folder)
    name = spec.pop("name")
    made = client.put(_path(name), spec)
    show(form, made, f"[bold]{escape(name)}[/bold] is at version {made['version']}")


def list_all(client: Client, form: Form) -> None:
    """All configurations, one a line."""
    found = list(client.pages("/configurations", "configurations"))
    if not found and form is Form.TEXT:
        console().print("no configurations; make one with `concertina configuration put job.yaml`")
        return
    rows = ((each["name"], str(each["version"]), each["spec"]["entrypoint"], each["updated_at"]) for each in found)
    show(form, {"configurations": found}, table(("name", "version", "entrypoint", "since"), rows))


def show_one(client: Client, name: str, form: Form) -> None:
    """One configuration: a job file of its name, which can be submitted or put again."""
    found = client.get(_path(name))
    job = {"name": found["name"], **found["spec"]}
    told = yaml.safe_dump(job, sort_keys=False, width=100).rstrip()
    show(form, found, f"[dim]# version {found['version']} since {found['updated_at']}[/dim]\n{escape(told)}")


def show_history(client: Client, name: str, form: Form) -> None:
    """The versions before this one, and why each is in use no longer."""
    history = list(client.pages(_path(name), "history"))
    if not history and form is Form.TEXT:
        found = client.get(_path(name))
        console().print(f"{escape(found['name'])} is at version {found['version']}; nothing was replaced yet")
        return
    show(form, {"history": history}, table(("version", "replaced", "by", "because"), _rows(history)))


def delete(client: Client, name: str, *, is_sure: bool, form: Form) -> None:
    """Remove it, after asking."""
    found = client.get(_path(name))
    number = words.plural(found["version"], "version")
    if not is_sure and not typer.confirm(f"Delete configuration {found['name']} with its {number}?", err=True):
        raise CommandError("nothing was deleted")
    client.delete(_path(name))
    show(form, found, f"[bold]{escape(found['name'])}[/bold] is deleted; sweeps that began from it stay")


def _rows(history: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            str(each["version"]),
            each["replaced_at"],
            configuration_words.by(each["by"]),
            configuration_words.evidence(each["evidence"]),
        )
        for each in history
    ]


def _path(name: str) -> str:
    return f"/configurations/{quote(name, safe='')}"

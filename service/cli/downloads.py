"""Downloads weights and files of a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rich.markup import escape

from service import words
from service.cli.failures import NOT_FOUND, CommandError
from service.cli.options import Form
from service.cli.output import print_json, say
from service.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``step`` None is the newest checkpoint; ``has_files`` asks for what the code wrote, too."""

    step: int | None
    folder: Path
    has_files: bool


def download_job(client: Client, reference: str, wanted: Wanted, form: Form) -> None:
    """Download one checkpoint's weights, and what the code wrote if asked.

    Raises CommandError when there is no such checkpoint, or a file's name would leave the folder.
    """
    job = client.find_job(reference)
    folder = wanted.folder
    folder.mkdir(parents=True, exist_ok=True)
    chosen = _choose(client.get(f"/jobs/{job['id']}/checkpoints")["checkpoints"], wanted.step, job["name"])
    weights = folder / f"{job['name']}-{chosen['step']}.safetensors"
    size = client.download(f"/jobs/{job['id']}/checkpoints/{chosen['step']}", weights)
    written = [(weights, size)]
    if wanted.has_files:
        for entry in client.get(f"/jobs/{job['id']}/files")["files"]:
            target = _inside(folder, entry["path"])
            written.append((target, client.download(f"/jobs/{job['id']}/files/{quote(entry['path'])}", target)))
    if form is Form.JSON:
        print_json({"job": job["id"], "step": chosen["step"], "files": [str(path) for path, _ in written]})
        return
    for path, size in written:
        say(f"{escape(str(path))}  [dim]{words.size(size)}[/dim]")


def _choose(checkpoints: list[dict[str, Any]], step: int | None, name: str) -> dict[str, Any]:
    if not checkpoints:
        raise CommandError(f"{name} has no checkpoint yet; it writes one every checkpoint.every_steps", NOT_FOUND)
    if step is None:
        return max(checkpoints, key=lambda c: (bool(c.get("final")), c["created_at"]))
    found = next((c for c in checkpoints if c["step"] == step), None)
    if found is None:
        steps = ", ".join(str(c["step"]) for c in checkpoints)
        raise CommandError(f"{name} has no checkpoint of step {step}; there are: {steps}", NOT_FOUND)
    return found


def _inside(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise CommandError(f"the file {name!r} would be written outside {folder}; it is not downloaded")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target

"""Downloads weights and files of a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rich.markup import escape

from service import words
from service.cli.failures import NOT_FOUND, CommandError, exit_code
from service.cli.options import Form
from service.cli.output import print_json, say
from service.client import Client
from service.client_errors import RefusedError, UnreachableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``step`` None is the newest checkpoint; ``has_files`` asks for what the code wrote, too."""

    step: int | None
    folder: Path
    has_files: bool


def download_job(client: Client, reference: str, wanted: Wanted, form: Form) -> None:
    """Download one checkpoint's weights, and what the code wrote if asked: every file that can be.

    Raises CommandError when there is no such checkpoint, nothing can be written, or a file could not be downloaded.
    """
    job = client.find_job(reference)
    folder = wanted.folder
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    chosen = _choose(client.get(f"/jobs/{job['id']}/checkpoints")["checkpoints"], wanted.step, job["name"])
    weights = folder / f"{job['name']}-{chosen['step']}.safetensors"
    with _writing(weights):
        size = client.download(f"/jobs/{job['id']}/checkpoints/{chosen['step']}", weights)
    written = [(weights, size)]
    failed: dict[str, Exception] = {}
    if wanted.has_files:
        found, failed = _download_files(client, job["id"], folder)
        written += found
    if form is Form.JSON:
        print_json({"job": job["id"], "step": chosen["step"], "files": [str(path) for path, _ in written]})
    else:
        for path, size in written:
            say(f"{escape(str(path))}  [dim]{words.size(size)}[/dim]")
    if failed:
        raise _incomplete(failed, len(failed) + len(written) - 1)


def _download_files(client: Client, job_id: str, folder: Path) -> tuple[list[tuple[Path, int]], dict[str, Exception]]:
    """Those that came with their bytes, and by name why others did not."""
    written: list[tuple[Path, int]] = []
    failed: dict[str, Exception] = {}
    for entry in client.get(f"/jobs/{job_id}/files")["files"]:
        name = entry["path"]
        try:
            target = _inside(folder, name)
            with _writing(target):
                written.append((target, client.download(f"/jobs/{job_id}/files/{quote(name)}", target)))
        except (CommandError, RefusedError) as error:
            failed[name] = error
        except UnreachableError as error:  # one answer that broke off is that file's own misfortune
            if not client.is_alive():
                raise
            failed[name] = error
    return written, failed


def _incomplete(failed: dict[str, Exception], num_files: int) -> CommandError:
    """The exit code is that of the first that failed."""
    lines = "".join(f"\n  {name!r}: {error}" for name, error in failed.items())
    code = exit_code(next(iter(failed.values())))
    assert code is not None
    return CommandError(f"{len(failed)} of {num_files} files were not downloaded:{lines}", code)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}; choose another by --output") from None


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
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    return target

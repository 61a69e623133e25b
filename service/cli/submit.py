"""Submitting: the job file, the folder of code that goes with it, the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.markup import escape

from service import words
from service.cli.documents import DocumentError, apply_settings, parse
from service.cli.follow import follow_job
from service.cli.options import Form
from service.cli.output import console, print_json
from service.client import Client, RefusedError
from service.ids import bundle_id
from service.packing import Bundle, pack

NUM_LARGEST = 5


def submit_file(client: Client, file: Path, settings: list[str], *, follow: bool, form: Form) -> int:
    """Submit a job file (``-`` reads stdin); gives the exit code.

    Raises DocumentError, PackingError and what the client raises.
    """
    spec = apply_settings(read_spec_file(file, "job", "name: ..., entrypoint: ..."), settings)
    folder = code_folder(spec, file)
    if folder is not None:
        send_code(client, spec, folder)
    job = client.submit(spec)
    if not follow:
        if form is Form.JSON:
            print_json(job)
        else:
            _tell(client, job)
        return 0
    _tell(client, job, is_error_stream=form is Form.JSON)
    return follow_job(client, job["id"], form)


def read_spec_file(file: Path, kind: str, example: str) -> dict[str, Any]:
    """The mapping in a file (``-`` reads stdin) with the spec of such a kind of thing. Raises DocumentError."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise DocumentError(f"the {kind} file {str(file)!r} cannot be read: {why}") from None
    document = parse(text, file.name)
    if not isinstance(document, dict):
        raise DocumentError(f"{file.name}: a {kind} spec is a mapping ({example}), not {document!r:.60}")
    return document


def code_folder(spec: dict[str, Any], file: Path) -> Path | None:
    """Take ``code`` out of the spec; a relative one is seen from the job file's folder. Raises DocumentError."""
    code = spec.pop("code", None)
    if code is None:
        return None
    if not isinstance(code, str):
        raise DocumentError(f"code: {code!r} is not a path; write `code: ./folder`")
    if spec.get("bundle") is not None:
        raise DocumentError(
            "code and bundle are both given; keep one (`code` uploads a folder, `bundle` names an upload)"
        )
    return (Path.cwd() if str(file) == "-" else file.resolve().parent) / Path(code).expanduser()


def send_code(client: Client, spec: dict[str, Any], folder: Path, validate: Callable[[], object] | None = None) -> None:
    """Upload a folder and name it in the job spec; nothing is sent for one that would be refused.

    ``validate`` asks the service about a whole of which the job is a part, the job alone where it is None.
    """
    bundle = pack(folder)
    spec["bundle"] = bundle_id(bundle.sha256)
    takes_requirements = spec.get("dependencies") is None and bool(bundle.dependencies)
    if takes_requirements:
        spec["dependencies"] = list(bundle.dependencies)
    _check_all_but_code(validate or (lambda: client.validate(spec)))
    _list_files(bundle, folder)
    if takes_requirements:
        _note(f"dependencies from requirements.txt: {', '.join(bundle.dependencies)}")
    spec["bundle"] = client.upload(bundle.data)["id"]


def _check_all_but_code(validate: Callable[[], object]) -> None:
    """Nothing is sent for a job that would be refused; that its code is not there yet is no fault."""
    try:
        validate()
    except RefusedError as error:
        if {problem.pointer.removeprefix("/job") for problem in error.problems} != {"/bundle"}:
            raise


def _list_files(bundle: Bundle, folder: Path) -> None:
    _note(
        f"code {folder}: {words.plural(len(bundle.sizes), 'file')}, {words.size(bundle.expanded_bytes)}, "
        f"{words.size(len(bundle.data))} packed"
    )
    for name, size in bundle.largest(NUM_LARGEST):
        _note(f"  {words.size(size):>9}  {name}")
    if len(bundle.sizes) > NUM_LARGEST:
        _note(f"  and {words.plural(len(bundle.sizes) - NUM_LARGEST, 'smaller file')}")


def _note(text: str) -> None:
    console(is_error=True).print(f"[dim]{escape(text)}[/dim]")


def _tell(client: Client, job: dict[str, Any], *, is_error_stream: bool = False) -> None:
    name = escape(job["name"])
    out = console(is_error=is_error_stream)
    out.print(f"[bold]{name}[/bold] is submitted: {job['id']}")
    out.print(f"[dim]page[/dim] {client.url}/jobs/{job['id']}   [dim]follow[/dim] concertina logs -f {name}")

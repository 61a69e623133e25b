"""Commands about schedules: what they ask of the service and how they tell it."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import typer
from rich.console import Group
from rich.markup import escape

from service import schedule_words
from service.cli.documents import apply_settings
from service.cli.failures import CommandError
from service.cli.options import Form
from service.cli.output import console, facts, show, table
from service.cli.run_follow import follow_run
from service.cli.submit import code_folder, read_spec_file, send_code
from service.cli.sweeps import send_sweep_code
from service.client import Client


def create(client: Client, file: Path, settings: list[str], form: Form) -> None:
    """Make a schedule of a file. Raises DocumentError, PackingError and what the client raises."""
    _tell(client.create_schedule(_read(client, file, settings)), form)


def replace(client: Client, reference: str, file: Path, settings: list[str], form: Form) -> None:
    """Exchange a spec for that of a file. Raises as ``create``."""
    found = client.find_schedule(reference)
    _tell(client.replace_schedule(found["id"], _read(client, file, settings)), form)


def validate(client: Client, file: Path, settings: list[str], form: Form) -> None:
    """Whether a file's spec would be taken. Raises as ``create``."""
    spec = client.validate_schedule(_read(client, file, settings))
    told = f"it starts {_target(spec)} at {spec['cron']} in {spec['time_zone']}"
    show(form, spec, f"[bold]{escape(spec['name'])}[/bold] would be taken: {escape(told)}")


def list_all(client: Client, form: Form) -> None:
    """All schedules, one a line."""
    found = list(client.schedules())
    if not found and form is Form.TEXT:
        console().print("no schedules; make one with `concertina schedule create schedule.yaml`")
        return
    columns = ("name", "state", "cron", "zone", "next there", "next here", "id")
    show(form, {"schedules": found}, table(columns, (_row(each) for each in found)))


def show_one(client: Client, reference: str, form: Form) -> None:
    """One schedule's facts."""
    found = client.find_schedule(reference)
    spec = found["spec"]
    bounds = " ".join(f"{name} {spec[name]}" for name in ("start", "end") if spec[name])
    rows = [
        ("name", found["name"]),
        ("id", found["id"]),
        ("state", schedule_words.state(found["state"]) + (f": {found['reason']}" if found["reason"] else "")),
        ("times", f"{spec['cron']} in {spec['time_zone']}" + (f", {bounds}" if bounds else "")),
        (
            "next",
            " there, ".join(_both(found["next_time"], spec["time_zone"])) + " here" if found["next_time"] else "–",
        ),
        ("starts", _target(spec)),
        ("overlap", spec["overlap"]),
        ("failures in a row", str(found["failures_in_a_row"])),
        ("page", f"{client.url}/schedules/{found['id']}"),
    ]
    show(form, found, facts(rows))


def show_upcoming(client: Client, reference: str, count: int, form: Form) -> None:
    """The next times, in the schedule's zone and in this machine's."""
    found = client.find_schedule(reference)
    zone = found["spec"]["time_zone"]
    upcoming = client.get(f"/schedules/{found['id']}/upcoming", count=count)
    rows = (_both(time, zone) for time in upcoming["times"])
    notices = [f"[yellow]{escape(notice)}[/yellow]" for notice in upcoming["notices"]]
    show(form, upcoming, Group(table((zone, "here"), rows), *notices))


def show_runs(client: Client, reference: str, count: int, form: Form) -> None:
    """What became of nominal times."""
    found = client.find_schedule(reference)
    runs = list(islice(client.schedule_runs(found["id"]), count))
    rows = (
        (
            _there(run["nominal_time"], found["spec"]["time_zone"]),
            schedule_words.outcome(run["outcome"]),
            schedule_words.child(run),
            run["child_id"] or "–",
            run["reason"] or "",
        )
        for run in runs
    )
    show(form, {"runs": runs}, table(("nominal time", "outcome", "now", "child", "why"), rows))


def command(client: Client, reference: str, verb: str, form: Form) -> None:
    """Pause or resume."""
    _tell(client.command_schedule(client.find_schedule(reference)["id"], verb), form)


def trigger(client: Client, reference: str, *, follow: bool, form: Form) -> int:
    """Run it now; gives the exit code. Raises CommandError where that could not start anything."""
    found = client.find_schedule(reference)
    run = client.command_schedule(found["id"], "trigger")
    why = f": {escape(run['reason'])}" if run["reason"] else ""
    child = f" [dim]{run['child_id']}[/dim]" if run["child_id"] else ""
    told = f"[bold]{escape(found['name'])}[/bold] {schedule_words.outcome(run['outcome']).lower()}{child}{why}"
    if follow:
        console(is_error=form is Form.JSON).print(told)
    else:
        show(form, run, told)
    if run["outcome"] == "FAILED":
        raise CommandError(f"nothing was started: {run['reason']}", exit_code=1)
    return follow_run(client, found, run, form) if follow else 0


def delete(client: Client, reference: str, *, is_sure: bool, form: Form) -> None:
    """Remove it, after asking."""
    found = client.find_schedule(reference)
    if not is_sure and not typer.confirm(f"Delete schedule {found['name']} with its history?", err=True):
        raise CommandError("nothing was deleted")
    client.delete_schedule(found["id"])
    show(form, found, f"[bold]{escape(found['name'])}[/bold] is deleted; what it started stays")


def _read(client: Client, file: Path, settings: list[str]) -> dict[str, Any]:
    spec = apply_settings(read_spec_file(file, "schedule", "name: ..., cron: ..., time_zone: ..."), settings)
    target = spec.get("target")
    job = target.get("job") if isinstance(target, dict) else None
    if isinstance(job, dict) and (folder := code_folder(job, file)) is not None:
        whole = {"name": spec.get("name"), **job}
        send_code(client, whole, folder)
        spec["target"] = {"job": whole}
    sweep = target.get("sweep") if isinstance(target, dict) else None
    if isinstance(sweep, dict):
        spec["target"] = {"sweep": {"name": spec.get("name"), **sweep}}
        send_sweep_code(client, spec["target"]["sweep"], file)
    return spec


def _tell(schedule: dict[str, Any], form: Form) -> None:
    state = schedule_words.state(schedule["state"]).lower()
    upcoming = schedule["next_time"]
    zone = schedule["spec"]["time_zone"]
    following = f"; runs next at {escape(_there(upcoming, zone))}" if upcoming else ""
    show(form, schedule, f"[bold]{escape(schedule['name'])}[/bold] ({schedule['id']}): {state}{following}")


def _target(spec: dict[str, Any]) -> str:
    return ", ".join(f"{kind} {child['name']}" for kind, child in spec["target"].items())


def _row(schedule: dict[str, Any]) -> tuple[str, ...]:
    spec = schedule["spec"]
    both = _both(schedule["next_time"], spec["time_zone"]) if schedule["next_time"] else ("–", "–")
    state = schedule_words.state(schedule["state"])
    return (schedule["name"], state, spec["cron"], spec["time_zone"], *both, schedule["id"])


def _both(time: str, zone: str) -> tuple[str, str]:
    here = datetime.fromisoformat(time).astimezone()
    return (_there(time, zone), f"{here:%a %Y-%m-%d %H:%M}")


def _there(time: str, zone: str) -> str:
    there = datetime.fromisoformat(time).astimezone(ZoneInfo(zone))
    return f"{there:%a %Y-%m-%d %H:%M} {there:%Z}"

"""Commands about sweeps: what they ask of the service and how they tell it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.markup import escape

from service import promotion_words, sweep_words, words
from service.cli.documents import apply_settings
from service.cli.options import Form
from service.cli.output import console, facts, print_json, show, table
from service.cli.submit import code_folder, read_spec_file, send_code
from service.cli.sweep_follow import follow_sweep
from service.client import Client


def submit(client: Client, file: Path, settings: list[str], *, follow: bool, form: Form) -> int:
    """Make a sweep of a file; gives the exit code. Raises DocumentError, PackingError and what the client raises."""
    sweep = client.submit_sweep(read_sweep(client, file, settings))
    if form is Form.JSON and not follow:
        print_json(sweep)
        return 0
    out = console(is_error=form is Form.JSON)
    out.print(f"[bold]{escape(sweep['name'])}[/bold] is searched: {sweep['id']}")
    out.print(f"[dim]page[/dim] {client.url}/sweeps/{sweep['id']}")
    return follow_sweep(client, sweep["id"], form) if follow else 0


def validate(client: Client, file: Path, settings: list[str], form: Form) -> None:
    """Whether a file's spec would be taken. Raises as ``submit``."""
    spec = client.ask_sweep("validate", read_sweep(client, file, settings))
    told = f"{words.plural(spec['trials'], 'trial')} over {', '.join(spec['space'])}"
    show(form, spec, f"[bold]{escape(spec['name'])}[/bold] would be taken: {escape(told)}")


def estimate(client: Client, file: Path, settings: list[str], form: Form) -> None:
    """What the sweep of a file would cost. Raises as ``submit``."""
    told = client.ask_sweep("estimate", read_sweep(client, file, settings))
    rows = [
        ("trials", words.count(told["trials"])),
        ("samples", sweep_words.bounds(told["samples"], "samples")),
        ("worker time", sweep_words.bounds(told["worker_s"], "s of a worker")),
    ]
    if told["amount"] is not None:
        rows.append(("cost", sweep_words.bounds(told["amount"], told["currency"])))
    show(form, told, Group(facts(rows), *(f"[dim]{escape(note)}[/dim]" for note in told["notes"])))


def list_all(client: Client, form: Form) -> None:
    """All sweeps, one a line."""
    found = list(client.sweeps())
    if not found and form is Form.TEXT:
        console().print("no sweeps; make one with `concertina sweep submit sweep.yaml`")
        return
    rows = (
        (
            each["name"],
            words.state(each["state"]),
            each["spec"]["metric"],
            sweep_words.best(each),
            sweep_words.numbers(each["trials"]),
            each["id"],
        )
        for each in found
    )
    show(form, {"sweeps": found}, table(("name", "state", "metric", "best", "trials", "id"), rows))


def show_one(client: Client, reference: str, form: Form) -> None:
    """One sweep's facts."""
    found = client.find_sweep(reference)
    spec, best = found["spec"], found["best"]
    rows = [
        ("name", found["name"]),
        ("id", found["id"]),
        ("state", words.state(found["state"]) + (f": {found['reason']}" if found["reason"] else "")),
        ("trials", sweep_words.numbers(found["trials"])),
        (f"best {spec['metric']} ({spec['mode']})", sweep_words.best(found)),
    ]
    if best is not None:
        rows += [("found at", sweep_words.best_params(found)), ("its job", best["job_id"])]
    if found["configuration"] is not None:
        origin = found["configuration"]
        rows.append(("began from", f"{origin['name']}, version {origin['version']}"))
    if found["promotion"] is not None:
        rows.append(("promotion", promotion_words.sentence(found["promotion"])))
    rows += [("searched", ", ".join(spec["space"])), ("page", f"{client.url}/sweeps/{found['id']}")]
    show(form, found, facts(rows))


def follow(client: Client, reference: str, form: Form) -> int:
    """Show one until it ends, whoever made it; gives the exit code."""
    return follow_sweep(client, client.find_sweep(reference)["id"], form)


def show_trials(client: Client, reference: str, state: str | None, count: int, form: Form) -> None:
    """Its trials."""
    found = client.find_sweep(reference)
    trials = list(islice(client.sweep_trials(found["id"], state), count))
    metric = found["spec"]["metric"]
    rows = (
        (
            str(trial["number"]),
            words.state(trial["state"]),
            words.metric_value(metric, trial["value"] if trial["value"] is not None else trial["last_value"]),
            words.count(trial["samples"]),
            words.duration(trial["worker_s"]),
            sweep_words.params(trial["params"]),
            trial["job_id"],
            trial["reason"] or "",
        )
        for trial in trials
    )
    columns = ("trial", "state", metric, "samples", "of a worker", "at", "job", "why")
    show(form, {"trials": trials}, table(columns, rows))


def show_report(client: Client, reference: str, form: Form) -> None:
    """What it found."""
    found = client.find_sweep(reference)
    report = client.get(f"/sweeps/{found['id']}/report")
    parts: list[Any] = [f"[bold]best {escape(report['metric'])}[/bold] {escape(sweep_words.best(found))}"]
    if report["best"] is not None:
        parts.append(escape(sweep_words.best_params(found)))
    if report["caution"]:
        parts.append(f"[yellow]{escape(report['caution'])}[/yellow]")
    for told in (_improvements(report), _importance(report), _schedule(report), _rungs(report)):
        parts += ["", *told] if told else []
    parts += ["", f"in all {escape(words.cost(report['cost']))}"]
    parts += _promotion(report)
    show(form, report, Group(*parts))


def _improvements(report: dict[str, Any]) -> list[Any]:
    metric = report["metric"]
    rows = (
        (
            str(each["trial"]),
            words.metric_value(metric, each["value"]),
            "–" if each["gain"] is None else words.number(each["gain"]),
            words.cost({**report["cost"], **each}),
        )
        for each in report["improvements"]
    )
    return [table(("trial", metric, "better by", "cost since the one before"), rows)]


def _importance(report: dict[str, Any]) -> list[Any]:
    rows = [(path, words.percent(share)) for path, share in report["importance"].items()]
    return [table(("what mattered", "share"), rows), sweep_words.importance_of(report)] if rows else []


def _schedule(report: dict[str, Any]) -> list[Any]:
    rows = [
        (words.count(each["samples"]), str(each["trial"]), sweep_words.params(each["params"]))
        for each in report["schedule"]
    ]
    return [table(("from samples", "trial", "behind the best state"), rows)] if rows else []


def _rungs(report: dict[str, Any]) -> list[Any]:
    rows = [
        (
            words.count(rung["samples"]),
            *(str(rung[key]) for key in ("reached", "waiting", "pruned")),
            words.metric_value(report["metric"], rung["best"]),
        )
        for rung in report["rungs"]
    ]
    return [table(("rung", "reached", "waiting", "pruned", "best there"), rows)] if rows else []


def _promotion(report: dict[str, Any]) -> list[Any]:
    promotion, metric = report["promotion"], report["metric"]
    if promotion is None:
        return []
    told = [f"promotion: {escape(promotion_words.sentence(promotion))}"]
    told += [escape(used)] if (used := promotion_words.used(promotion)) else []
    rows = [tuple(row.values()) for row in promotion_words.compared(promotion, metric)]
    better = ("better than what is in use by", "p of better", "saves", "p of as good and cheaper")
    return [*told, "", table(("compared", f"{metric}, mean", *better, "of a worker"), rows)] if rows else told


def command(client: Client, reference: str, verb: str, form: Form) -> None:
    """Pause, resume, or retry what failed."""
    _tell(client.command_sweep(client.find_sweep(reference)["id"], verb), form)


def stop(client: Client, reference: str, form: Form) -> None:
    """End it, or of one that has ended its promotion."""
    before = client.find_sweep(reference)
    _tell(after := client.command_sweep(before["id"], "stop"), form, promotion_words.stopped(before, after))


def extend(client: Client, reference: str, num_trials: int, form: Form) -> None:
    """Allow more trials."""
    _tell(client.extend_sweep(client.find_sweep(reference)["id"], num_trials), form)


def promote(client: Client, reference: str, configuration: str | None, form: Form) -> None:
    """Hold its winner against a configuration."""
    sweep = client.promote_sweep(client.find_sweep(reference)["id"], configuration)
    told = promotion_words.sentence(sweep["promotion"])
    show(form, sweep, f"[bold]{escape(sweep['name'])}[/bold] ({sweep['id']}): {escape(told)}")


def read_sweep(client: Client, file: Path, settings: list[str]) -> dict[str, Any]:
    """The spec in a file, its job's code uploaded. Raises as ``submit``."""
    spec = apply_settings(read_spec_file(file, "sweep", "name: ..., job: ..., space: ..., metric: ..."), settings)
    send_sweep_code(client, spec, file)
    return spec


def send_sweep_code(client: Client, spec: dict[str, Any], file: Path) -> None:
    """Upload the folder that a sweep's job names as its code. Raises as ``submit``."""
    job = spec.get("job")
    if isinstance(job, dict) and (folder := code_folder(job, file)) is not None:
        send_code(client, job, folder, lambda: client.ask_sweep("validate", spec))


def _tell(sweep: dict[str, Any], form: Form, besides: str = "") -> None:
    state, trials = words.state(sweep["state"]).lower(), sweep_words.numbers(sweep["trials"])
    told = f"{trials}{f'; {besides}' if besides else ''}"
    show(form, sweep, f"[bold]{escape(sweep['name'])}[/bold] ({sweep['id']}): {state}, {escape(told)}")

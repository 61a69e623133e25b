"""Commands that look at jobs and at the cluster and change nothing."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from rich.console import Group
from rich.markup import escape

from service import timeline_words, words
from service.cli.follow import follow_job
from service.cli.options import Form
from service.cli.output import complain, console, facts, print_json, show, table
from service.client import Client
from service.records import Duty

MAX_SENTENCES = 500
DEFAULT_KEYS = ("loss", "lr", "workers", "samples_per_s")


def list_jobs(client: Client, state: str | None, label: str | None, limit: int, form: Form) -> None:
    """The newest jobs, one a line."""
    jobs = list(islice(client.jobs(state, label), limit))
    if not jobs and form is Form.TEXT:
        console().print("no jobs; submit one with `concertina submit job.yaml`, or see `concertina demo`")
        return
    columns = ("name", "state", "done", "workers", "throughput", "created", "id")
    show(form, {"jobs": jobs}, table(columns, (_job_row(job) for job in jobs)))


def follow(client: Client, reference: str, form: Form) -> int:
    """Show one job until it ends, whoever made it; gives the exit code."""
    return follow_job(client, client.find_job(reference)["id"], form)


def show_job(client: Client, reference: str, form: Form) -> None:
    """One job's facts."""
    job = client.find_job(reference)
    done, counts = job["progress"], job["workers"]
    evaluated = ", ".join(
        f"{name} {words.metric_value(name, value)}" for name, value in (done.get("eval") or {}).items()
    )
    why = words.reason(job.get("reason"))
    rows = [
        ("name", job["name"]),
        ("id", job["id"]),
        ("state", words.state(job["state"]) + (f": {why}" if why else "")),
        ("progress", _progress(done)),
        ("loss", words.number(done.get("loss"))),
        ("evaluation", evaluated or "–"),
        ("workers", f"{words.workers(counts)}, {counts.get('desired')} wanted"),
        ("throughput", words.rate(done.get("samples_per_s"))),
        ("left", words.duration(done.get("eta_s"))),
        ("attempt", str(job["attempt"])),
        ("created", _local(job["created_at"])),
        ("started", _local(job.get("started_at"))),
        ("finished", _local(job.get("finished_at"))),
        ("cost", words.cost(job.get("cost"))),
        ("page", f"{client.url}/jobs/{job['id']}"),
    ]
    show(form, job, facts(rows))


def _progress(done: dict[str, Any]) -> str:
    of = f" of {words.count(done['steps'])}" if done.get("steps") else ""
    return f"step {words.count(done.get('step'))}{of}"


def show_metrics(client: Client, reference: str, keys: str | None, points: int, form: Form) -> None:
    """Telemetry over the steps, thinned to so many points."""
    job = client.find_job(reference)
    wanted = [k.strip() for k in keys.split(",") if k.strip()] if keys else None
    found = client.get(f"/jobs/{job['id']}/metrics", keys=",".join(wanted) if wanted else None, max_points=points)
    if missing := [key for key in wanted or () if key not in found["keys"]]:
        there = client.get(f"/jobs/{job['id']}/metrics", max_points=2)["keys"]
        told = f"nothing is reported as {', '.join(missing)} so far; reported are: {', '.join(there) or 'none'}"
        complain(f"[yellow]note:[/yellow] {escape(told)}", is_detail=True)
    shown = wanted or [k for k in DEFAULT_KEYS if k in found["keys"]]
    rows = (
        (words.count(p["step"]), *(words.metric_value(k, p["values"].get(k)) for k in shown)) for p in found["points"]
    )
    show(form, found, table(("step", *shown), rows))


def show_timeline(client: Client, reference: str, form: Form) -> None:
    """What changed while the job ran, as sentences."""
    job = client.find_job(reference)
    rows = client.timeline(job["id"])
    runs = _runs_of_checkpoints(rows)
    parts: list[Any] = [table(("time", "step", "what"), (_told(run) for run in runs[-MAX_SENTENCES:]))]
    if len(runs) > MAX_SENTENCES:
        num_earlier = sum(len(run) for run in runs[:-MAX_SENTENCES])
        parts.insert(0, f"[dim]{words.plural(num_earlier, 'earlier row')} left out; -o json gives all[/dim]")
    show(form, {"timeline": rows}, Group(*parts))


def _runs_of_checkpoints(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows, with checkpoints that follow each other in one piece: hundreds of them would hide all else."""
    pieces = (list(piece) for _, piece in groupby(rows, key=lambda row: row["kind"] == "checkpoint"))
    return [run for piece in pieces for run in ([piece] if piece[0]["kind"] == "checkpoint" else [[r] for r in piece])]


def _told(run: list[dict[str, Any]]) -> tuple[str, str, str]:
    last = run[-1]
    sentence = timeline_words.sentence(last)
    if len(run) > 1:
        sentence = f"{words.plural(len(run), 'checkpoint')} from step {words.count(run[0]['step'])} on; {sentence}"
    return (_clock(last["time"]), words.count(last["step"]), sentence)


def explain_job(client: Client, reference: str, form: Form) -> None:
    """Why it waits or failed."""
    job = client.find_job(reference)
    told = client.get(f"/jobs/{job['id']}/explain")
    lines = [escape(told["summary"]), *(escape(line) for line in told["details"])]
    if told.get("remedy"):
        lines.append(f"[bold]What to do:[/bold] {escape(str(told['remedy']))}")
    show(form, told, "\n".join(line for line in lines if line))


def report_job(client: Client, reference: str, form: Form) -> None:
    """What each optimisation did."""
    job = client.find_job(reference)
    told = client.get(f"/jobs/{job['id']}/report")
    if not told["sections"] and form is Form.TEXT:
        console().print("nothing has been changed yet whose worth could be measured; `timeline` tells what happened")
        return
    columns = ("step", "change", "gain", "expected", "measured")
    show(form, told, table(columns, (_section_row(section) for section in told["sections"])))


def _section_row(section: dict[str, Any]) -> tuple[str, ...]:
    expected = section["expected"]
    return (
        words.count(section["step"]),
        section["name"],
        words.gain(section),
        "–" if expected is None else f"{expected:.2f}",
        section["evidence"],
    )


def compare_jobs(client: Client, references: list[str], form: Form) -> None:
    """Where the specs of jobs differ, and the last value of each common metric."""
    jobs = [client.find_job(reference) for reference in references]
    found = client.get("/compare", jobs=",".join(job["id"] for job in jobs))
    if form is Form.JSON:
        print_json(found)
        return
    names = [job["name"] for job in jobs]
    differences = table(("spec", *names), (_difference_row(d, jobs) for d in found["differences"]))
    ends = table(("job", "state", "loss", "throughput", "evaluation"), (_end_row(job) for job in jobs))
    console().print(Group(differences, "", ends))


def list_checkpoints(client: Client, reference: str, form: Form) -> None:
    """A job's checkpoints, oldest first."""
    job = client.find_job(reference)
    found = client.get(f"/jobs/{job['id']}/checkpoints")
    rows = (
        (
            words.count(c["step"]),
            words.size(c["size_bytes"]),
            words.number(c.get("metric")),
            "final" if c.get("final") else "",
            _local(c["created_at"]),
        )
        for c in found["checkpoints"]
    )
    show(form, found, table(("step", "size", "metric", "", "created"), rows))


def show_cluster(client: Client, form: Form) -> None:
    """The machines, what is free on them, what runs and what is wanted."""
    found = client.get("/cluster")
    columns = ("node", "id", "rack", "state", "free", "running")
    parts: list[Any] = [table(columns, (_node_row(node) for node in found["nodes"]))]
    told = {doubt["told"] for node in found["nodes"] for doubt in node["rack_doubts"]}
    parts += [f"[yellow]{escape(line)}[/yellow]" for line in sorted(told)]
    if found.get("error"):
        parts.append(f"[yellow]{escape(str(found['error']))}[/yellow]")
    for row in found["demand"]:
        parts.append(f"{escape(row['name'])} waits for {words.plural(row['workers'], 'worker')}")
    if found["demand_left_out"]:
        parts.append(f"and {words.plural(found['demand_left_out'], 'more job')}")
    parts += [escape(line) for line in (found.get("autoscaling") or {}).get("told", ())]
    show(form, found, Group(*parts))


def _job_row(job: dict[str, Any]) -> tuple[str, ...]:
    done = job["progress"]
    share = done["step"] / done["steps"] if done.get("steps") and done.get("step") is not None else None
    return (
        job["name"],
        words.state(job["state"]),
        words.percent(share),
        words.workers(job["workers"]),
        words.rate(done.get("samples_per_s")),
        _local(job["created_at"]),
        job["id"],
    )


def _node_row(node: dict[str, Any]) -> tuple[str, ...]:
    total, free = node["total"], node["free"]
    amounts = [f"{words.number(free[k])} of {words.number(total[k])} {k}" for k in ("cpus", "gpus") if total.get(k)]
    if total.get("memory_bytes"):
        amounts.append(f"{words.size(free['memory_bytes'])} memory")
    jobs = Counter(worker["job_name"] for worker in node["workers"])
    running = ", ".join(f"{name} ({words.plural(count, 'worker')})" for name, count in jobs.items())
    state = node["duty"] if node["duty"] != Duty.ACTIVE else "leaving" if node["is_leaving"] else "alive"
    state = state if node["is_alive"] else "lost"
    return (node["name"], node["id"][:12], node["rack"] or "–", state, ", ".join(amounts), running or "–")


def _difference_row(difference: dict[str, Any], jobs: list[dict[str, Any]]) -> tuple[str, ...]:
    values = difference["values"]
    return (difference["path"], *(json.dumps(values[job["id"]]) if job["id"] in values else "–" for job in jobs))


def _end_row(job: dict[str, Any]) -> tuple[str, ...]:
    done = job["progress"]
    evaluated = ", ".join(f"{k} {words.metric_value(k, v)}" for k, v in (done.get("eval") or {}).items())
    return (
        job["name"],
        words.state(job["state"]),
        words.number(done.get("loss")),
        words.rate(done.get("samples_per_s")),
        evaluated or "–",
    )


def _local(time: str | None) -> str:
    """An RFC 3339 time in this machine's zone; ``–`` for None."""
    return f"{_parsed(time):%Y-%m-%d %H:%M:%S}" if time else "–"


def _clock(time: str) -> str:
    return f"{_parsed(time):%H:%M:%S}"


def _parsed(time: str) -> datetime:
    return datetime.fromisoformat(time).astimezone()

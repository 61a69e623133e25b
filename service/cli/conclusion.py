"""What the demonstration tells at its end: what happened, what it cost, and whether every count is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.markup import escape

from service import timeline_words, words
from service.cli.counts import wrong_counts
from service.cli.failures import FAILED
from service.cli.output import console, say, table

TOLD_KINDS = frozenset({"resize", "worker_lost", "worker_joined", "restore", "controller_lost"})


def conclude(
    job: dict[str, Any], rows: Sequence[dict[str, Any]], points: Sequence[dict[str, Any]], why: Callable[[], str]
) -> int:
    """Tell the end of ``job``; gives the exit code: 0 where it succeeded and nothing is counted wrongly.

    ``rows`` are its timeline, ``points`` its metrics with ``global_batch``, none left out; ``why`` explains a failure.
    """
    told = [row for row in rows if row["kind"] in TOLD_KINDS]
    say("\n[bold]What happened, and what it cost[/bold]")
    console().print(
        table(
            ("step", "what", "seconds without a step", "steps lost"),
            ((words.count(r["step"]), timeline_words.sentence(r), _seconds(r), _lost(r)) for r in told),
        )
    )
    if job["state"] != "SUCCEEDED":
        say(f"the job {words.state(job['state']).lower()}. {escape(why())}")
        return FAILED
    faults = wrong_counts(job, points)
    for fault in faults:
        say(f"[red]✗[/red] {escape(fault)}")
    if not faults:
        _praise(job["progress"])
    return FAILED if faults else 0


def _praise(done: dict[str, Any]) -> None:
    evaluated = {key: value for key, value in (done.get("eval") or {}).items() if value is not None}
    found = ", ".join(f"{name} {words.metric_value(name, value)}" for name, value in evaluated.items())
    say(
        f"[green]✓[/green] {words.count(done['samples'])} samples in {words.count(done['steps'])} steps, "
        f"each counted once{f'; {found}' if found else ''}"
    )


def _seconds(row: dict[str, Any]) -> str:
    return "–" if row.get("cost_s") is None else words.duration(row["cost_s"])


def _lost(row: dict[str, Any]) -> str:
    least = "≥ " if (row.get("after") or {}).get("is_least") else ""
    return "–" if row.get("steps_lost") is None else f"{least}{row['steps_lost']}"

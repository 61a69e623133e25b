"""Follows a job until it ends: a progress bar, and its timeline as sentences.

It asks once a second instead of holding a stream open, so that a restart of the service between two
questions is not noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from service import timeline_words, words
from service.cli.failures import FAILED, INTERRUPTED
from service.cli.options import Form
from service.cli.output import console, print_json
from service.client import Client, UnreachableError

ASK_EVERY_S = 1.0
AWAY_LIMIT_S = 120.0
NUM_AWAITED = 100
"""So many of the newest rows may still get their cost."""
ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


def follow_job(client: Client, job_id: str, form: Form, sleep: Callable[[float], None] = time.sleep) -> int:
    """Show a job until it ends; gives the exit code. Ctrl-C ends the showing only.

    Raises UnreachableError when the service stays away for two minutes.
    """
    display = console(is_error=form is Form.JSON)
    view = JobView(client, job_id)
    try:
        _watch(view, display, sleep)
    except KeyboardInterrupt:
        # By its id: of a schedule's jobs all have one name, and the newest may be another by then.
        display.print(f"the job goes on; follow it again with `concertina show {job_id} --follow`")
        return INTERRUPTED
    return _finish(client, view.job, form)


def _watch(view: JobView, display: Console, sleep: Callable[[float], None]) -> None:
    """Draw the bar and print the news until the job has ended."""
    with Progress(
        BarColumn(bar_width=12),  # all of it in a line of 80 characters
        TextColumn("{task.percentage:>3.0f} %  {task.fields[facts]}"),
        console=display,
        disable=not display.is_terminal,
        auto_refresh=False,  # nothing on it moves between two looks
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=1.0, facts="")
        while view.job.get("state") not in ENDED:
            if view.job:
                sleep(ASK_EVERY_S)
            view.ask()
            _draw(progress, bar, view.job)
            for line in view.news():
                display.print(line)


class Patience:
    """How long a service may stay away while it is asked again and again."""

    def __init__(self) -> None:
        self._away_since_s: float | None = None

    def answered(self) -> None:
        """It is there."""
        self._away_since_s = None

    def missed(self, error: UnreachableError) -> None:
        """It is not. Raises the error once that has lasted for too long."""
        now_s = time.monotonic()
        self._away_since_s = self._away_since_s or now_s
        if now_s - self._away_since_s > AWAY_LIMIT_S:
            raise error


class JobView:
    """What is known of a job, and which of it was told already."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._patience = Patience()
        self._state = ""
        self._rows: dict[int, dict[str, Any]] = {}
        self._untold: set[int] = set()
        self.job: dict[str, Any] = {}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its timeline, oldest first."""
        return list(self._rows.values())

    def ask(self) -> None:
        """Fetch the job and the news of its timeline.

        Keeps what it had while the service is away for less than the limit.
        """
        try:
            self.job = self._client.job(self._job_id)
            for row in self._client.timeline(self._job_id, self._known_to()):
                seq = int(row["seq"])
                if seq not in self._rows:
                    self._untold.add(seq)
                self._rows[seq] = row
            self._patience.answered()
        except UnreachableError as error:
            if not self.job:
                raise
            self._patience.missed(error)

    def _known_to(self) -> int:
        """Up to which row nothing can be new; the newest ones may still be without their cost."""
        newest = list(islice(reversed(self._rows), NUM_AWAITED))
        awaited = [seq for seq in newest if self._rows[seq].get("cost_s") is None]
        return min(awaited) - 1 if awaited else max(newest, default=0)

    def news(self) -> list[str]:
        """Sentences about what happened since the last time, as rich's markup."""
        lines = []
        if self.job.get("state") != self._state:
            self._state = str(self.job.get("state"))
            why = words.reason(self.job.get("reason"))
            lines.append(f"[bold]{words.state(self._state)}[/bold]{f': {escape(why)}' if why else ''}")
        for seq in sorted(self._untold):
            row = self._rows[seq]
            # A row is sent before its cost is known, and again with it: tell it once it is complete.
            if _is_open(row):
                continue
            self._untold.remove(seq)
            if row["kind"] != "checkpoint":
                lines.append(f"  {escape(timeline_words.sentence(row))}")
        return lines


def _is_open(row: dict[str, Any]) -> bool:
    return row["kind"] in ("resize", "worker_lost") and row.get("cost_s") is None


def _draw(progress: Progress, bar: TaskID, job: dict[str, Any]) -> None:
    done = job["progress"]
    steps = done.get("steps") or 0
    parts = [f"step {words.count(done.get('step'))}"]
    if done.get("loss") is not None:
        parts.append(f"loss {words.number(done['loss'])}")
    if done.get("samples_per_s"):
        parts.append(f"{words.number(done['samples_per_s'])}/s")
    parts.append(words.plural(job["workers"]["current"], "worker"))
    if done.get("eta_s") is not None:
        parts.append(f"{words.duration(done['eta_s'])} left")
    share = min(1.0, (done.get("step") or 0) / steps) if steps else 0.0
    progress.update(bar, completed=share, facts=escape("  ".join(parts)), refresh=True)


def _finish(client: Client, job: dict[str, Any], form: Form) -> int:
    is_good = job["state"] == "SUCCEEDED"
    if form is Form.JSON:
        print_json(job)
    elif is_good:
        evaluated = {k: v for k, v in (job["progress"].get("eval") or {}).items() if v is not None}
        found = ", ".join(f"{name} {words.metric_value(name, value)}" for name, value in evaluated.items())
        done = f"{words.count(job['progress'].get('samples'))} samples"
        console().print(f"{escape(job['name'])}: {done}{f', {found}' if found else ''}")
    else:
        told = client.get(f"/jobs/{job['id']}/explain")
        for line in (told["summary"], *told["details"], told["remedy"]):
            if line:
                console().print(escape(line))
    return 0 if is_good else FAILED

"""Follows a sweep until it ends: trials done as a bar, each better value and each failure as a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from service import promotion_words, sweep_words, words
from service.cli.failures import FAILED, INTERRUPTED
from service.cli.follow import ASK_EVERY_S, Patience
from service.cli.options import Form
from service.cli.output import console, print_json
from service.client import Client, UnreachableError

ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


def follow_sweep(client: Client, sweep_id: str, form: Form, sleep: Callable[[float], None] = time.sleep) -> int:
    """Show a sweep until it ends; gives the exit code. Ctrl-C ends the showing only.

    Raises UnreachableError when the service stays away for two minutes.
    """
    display = console(is_error=form is Form.JSON)
    view = SweepView(client, sweep_id)
    try:
        _watch(view, display, sleep)
    except KeyboardInterrupt:
        # By its id: of a schedule's sweeps all have one name, and the newest may be another by then.
        display.print(f"the sweep goes on; follow it again with `concertina sweep get {sweep_id} --follow`")
        return INTERRUPTED
    if form is Form.JSON:
        print_json(view.sweep)
    else:
        best = sweep_words.best(view.sweep)
        display.print(escape(f"{view.name}: {sweep_words.numbers(view.sweep['trials'])}, best {best}"))
        if view.sweep["promotion"] is not None:
            display.print(escape(promotion_words.sentence(view.sweep["promotion"])))
    return 0 if view.sweep["state"] == "SUCCEEDED" else FAILED


def _watch(view: SweepView, display: Console, sleep: Callable[[float], None]) -> None:
    """Draw the bar and print the news until the sweep has ended."""
    with Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[facts]}"),
        console=display,
        disable=not display.is_terminal,
        auto_refresh=False,  # nothing on it moves between two looks
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=1.0, facts="")
        while not view.is_over:
            if view.sweep:
                sleep(ASK_EVERY_S)
            view.ask()
            trials = view.sweep["trials"]
            facts = f"{sweep_words.numbers(trials)}  best {sweep_words.best(view.sweep)}{_compared(view.sweep)}"
            share = sweep_words.done(trials) / (trials["total"] or 1)
            progress.update(bar, completed=share, facts=escape(facts), refresh=True)
            for line in view.news():
                display.print(line)


def _compared(sweep: dict[str, Any]) -> str:
    """How far its promotion is, while it goes on."""
    if not promotion_words.goes_on(sweep):
        return ""
    runs = sweep["promotion"]["runs"]
    return f"  compared {runs['ended']}/{runs['started']}"


class SweepView:
    """What is known of a sweep, and which of it was told already."""

    def __init__(self, client: Client, sweep_id: str) -> None:
        self._client = client
        self._sweep_id = sweep_id
        self._patience = Patience()
        self._state = ""
        self._best: dict[str, Any] | None = None
        self._failed: dict[int, str] = {}
        self._untold: list[int] = []
        self._is_compared = False
        self.sweep: dict[str, Any] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing is to come, a promotion of its winner counted."""
        return self.sweep.get("state") in ENDED and promotion_words.is_over(self.sweep)

    @property
    def name(self) -> str:
        return str(self.sweep.get("name", self._sweep_id))

    def ask(self) -> None:
        """Fetch the sweep, and its failures where there are others; keeps what it had while the service is away."""
        try:
            sweep = self._client.get(f"/sweeps/{self._sweep_id}")
            if sweep["trials"]["failed"] != len(self._failed):
                failed = self._client.sweep_trials(self._sweep_id, "FAILED")
                told = {each["number"]: str(each["reason"] or "") for each in failed}
                self._untold = sorted(told.keys() - self._failed.keys())
                self._failed = told
            self.sweep = sweep
            self._patience.answered()
        except UnreachableError as error:
            if not self.sweep:
                raise
            self._patience.missed(error)

    def news(self) -> list[str]:
        """Sentences about what happened since the last time, as rich's markup."""
        lines = []
        if self.sweep["state"] != self._state:
            self._state = self.sweep["state"]
            why = self.sweep["reason"]
            lines.append(f"[bold]{words.state(self._state)}[/bold]{f': {escape(why)}' if why else ''}")
        lines += [escape(f"  trial {number} failed: {self._failed[number]}") for number in self._untold]
        self._untold = []
        if self.sweep["best"] != self._best:
            self._best = self.sweep["best"]
            if self._best is not None:
                point = sweep_words.params(self._best["params"])
                lines.append(escape(f"  best so far: {sweep_words.best(self.sweep)}, {point}"))
        was_compared, self._is_compared = self._is_compared, promotion_words.goes_on(self.sweep)
        if self._is_compared and not was_compared:
            lines.append(escape(f"  {promotion_words.begun(self.sweep['promotion'])}"))
        return lines

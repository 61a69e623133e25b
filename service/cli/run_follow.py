"""Follows what a run of a schedule starts: a job or a sweep, once nothing before it is in the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.markup import escape

from service.cli.failures import FAILED, INTERRUPTED, CommandError
from service.cli.follow import ASK_EVERY_S, Patience, follow_job
from service.cli.options import Form
from service.cli.output import console
from service.cli.sweep_follow import follow_sweep
from service.client import Client, UnreachableError

_FOLLOWERS: Mapping[str, Callable[[Client, str, Form, Callable[[float], None]], int]] = {
    "job": follow_job,
    "sweep": follow_sweep,
}


def follow_run(
    client: Client,
    schedule: dict[str, Any],
    run: dict[str, Any],
    form: Form,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show what it starts until that ends; gives the exit code. Ctrl-C ends the showing only.

    Raises CommandError where it starts nothing, UnreachableError when the service stays away for two minutes.
    """
    display = console(is_error=form is Form.JSON)
    try:
        run = _started(client, schedule, run, sleep)
    except KeyboardInterrupt:
        name = escape(schedule["name"])
        display.print(
            f"it starts once the run before has ended; `concertina schedule runs {name}` tells what it started"
        )
        return INTERRUPTED
    kind, child_id = run["kind"], run["child_id"]
    if child_id is None:
        raise CommandError(f"nothing was started, so there is nothing to follow: {run['reason']}", exit_code=FAILED)
    display.print(f"[dim]page[/dim] {client.url}/{kind}s/{child_id}")
    return _FOLLOWERS[kind](client, child_id, form, sleep)


def _started(
    client: Client, schedule: dict[str, Any], run: dict[str, Any], sleep: Callable[[float], None]
) -> dict[str, Any]:
    """The run as it is once it need not wait any more."""
    patience = Patience()
    nominal = run["nominal_time"]
    while run["outcome"] == "BUFFERED":
        sleep(ASK_EVERY_S)
        try:
            runs = client.schedule_runs(schedule["id"])
            found = next((each for each in runs if each["nominal_time"] == nominal), None)
            patience.answered()
        except UnreachableError as error:
            patience.missed(error)
            continue
        if found is None:
            raise CommandError(f"the run of {nominal} is gone from schedule {schedule['name']}", exit_code=FAILED)
        run = found
    return run

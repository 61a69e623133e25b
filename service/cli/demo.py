"""The demonstration: start everything, train digits, resize, lose a worker, tell what it cost.

The service runs in the main thread, which gets the signals; the scenario runs in a thread of its own and
speaks to the service as anybody would, over REST.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.markup import escape

from service import words
from service.cli.connection import connect, home_of
from service.cli.failures import FAILED, INTERRUPTED, CommandError
from service.cli.login import login_link
from service.cli.news import tell
from service.cli.options import Form
from service.cli.output import answering, complain, say
from service.cli.scenario import Scenario, ScenarioError
from service.client import ClientError
from service.settings import Settings, environment, load_settings
from service.supervise.lock import current_holder
from service.supervise.ports import is_free
from service.supervise.serve import Served, child_environment, serve
from service.supervise.supervisor import Mark

ENTRYPOINT = "workers.recipes.digits:build"
CONFIG = {"model": "cnn", "channels": 32, "hidden": 256}
GLOBAL_BATCH = 256
MAX_BATCHES = 5  # of GLOBAL_BATCH: all that an epoch has
STRETCH_SHARE = 0.07  # of what one worker would take: four sizes are watched, and changes take their time
NUM_WORKERS = 2
LEAST_STEPS, MOST_STEPS = 200, 9000
GUESSED_SAMPLES_PER_S = 6000.0
MEASURE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Flags of the command; ``seconds`` is about how long one worker alone would train."""

    home: Path | None
    port: int | None
    num_cpus: int | None
    seconds: float
    leave: bool
    form: Form


Answer: TypeAlias = Callable[[Any], None]


def run_demo(options: DemoOptions) -> int:
    """Run the demonstration; gives the exit code: 0 when the job succeeded and every count is right.

    Raises CommandError where two workers would never fit.
    """
    with answering(options.form) as answer:
        return _run(options, answer)


def _run(options: DemoOptions, answer: Answer) -> int:
    begin_s = time.monotonic()
    place = home_of(options.home)
    holder = current_holder(place.lock_file)
    settings = _settings(options)
    if holder is None:
        _check_room(settings)
    stretch_s = STRETCH_SHARE * options.seconds
    act = _Act(spec=demo_spec(settings, options.seconds), begin_s=begin_s, stretch_s=stretch_s)
    if holder is not None:
        tell(Mark.NOTE, "service", f"runs already at {holder.url}; the demonstration uses it")
        return _play(act, place.path, answer)
    played = _Played()

    def on_ready(served: Served) -> None:
        say(f"  open     [bold]{escape(login_link(served.settings, served.page_url))}[/bold]")

        def play() -> None:
            exit_code = _play(act, served.settings.home, answer, served.is_stopping)
            if not served.is_stopping():
                played.exit_code = exit_code
                _conclude(served, leave=options.leave)

        threading.Thread(target=play, daemon=True).start()

    exit_code = serve(settings, environment(), tell, on_ready)
    return exit_code or (INTERRUPTED if played.exit_code is None else played.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """What is played: the job, since when (monotonic clock), and how long each of its sizes is watched."""

    spec: dict[str, Any]
    begin_s: float
    stretch_s: float


@dataclass(slots=True)
class _Played:
    """The scenario's exit code, None until it has ended."""

    exit_code: int | None = None


def _conclude(served: Served, *, leave: bool) -> None:
    if leave:
        served.request_stop()
    else:
        say(f"\n  the page stays up: [bold]{escape(served.page_url)}[/bold]; Ctrl-C ends everything")


def _play(act: _Act, home: Path, answer: Answer, is_stopping: Callable[[], bool] = lambda: False) -> int:
    try:
        with connect(home=home) as client:
            scenario = Scenario(client, act.begin_s, act.stretch_s)
            exit_code = scenario.play(act.spec)
            answer(
                {
                    "job": scenario.job,
                    "timeline": scenario.rows,
                    "first_point_s": scenario.first_point_s,
                    "is_right": exit_code == 0,
                }
            )
            return exit_code
    except (ScenarioError, ClientError) as error:
        if not is_stopping():
            complain(escape(str(error)))
        return FAILED


def _settings(options: DemoOptions) -> Settings:
    settings = load_settings({"home": options.home, "port": options.port, "num_cpus": options.num_cpus})
    changes: dict[str, int] = {}
    if settings.num_cpus is None:
        # Two workers of one CPU each have to fit, also on a machine with one.
        changes["num_cpus"] = max(NUM_WORKERS, len(os.sched_getaffinity(0)))
    if options.port is None and not is_free(settings.port):
        changes["port"] = 0
    return settings.model_copy(update=changes)


def _check_room(settings: Settings) -> None:
    if settings.ray_address is None and settings.num_cpus is not None and settings.num_cpus < NUM_WORKERS:
        raise CommandError(
            f"num_cpus={settings.num_cpus} has no room for the {NUM_WORKERS} workers of the demonstration; leave "
            f"--num-cpus out, or give {NUM_WORKERS} or more, also where the machine has fewer"
        )


def demo_spec(settings: Settings, wanted_s: float) -> dict[str, Any]:
    """A job that one worker trains in about ``wanted_s`` seconds on this machine, by the throughput measured here."""
    rate = measured_samples_per_s(settings)
    steps, batch = amount(rate, wanted_s)
    tell(Mark.NOTE, "measured", f"{words.rate(rate)} with one worker, so {words.count(steps)} steps of {batch}")
    return {
        "name": "demo-digits",
        "entrypoint": ENTRYPOINT,
        "config": CONFIG,
        "steps": steps,
        "workers": {"min": 1, "max": NUM_WORKERS},
        "batch": {"global_size": batch},
        "checkpoint": {"every_steps": max(1, steps // 5), "metric": "eval.accuracy"},
        "eval_every_steps": max(1, steps // 20),
        "labels": {"made-by": "demo"},
    }


def amount(samples_per_s: float, wanted_s: float) -> tuple[int, int]:
    """Steps and global batch that last about ``wanted_s`` at ``samples_per_s``.

    A machine on which that were more than ``MOST_STEPS``, which are read back one by one at the end, takes a larger
    batch instead.
    """
    samples = samples_per_s * wanted_s
    batch = GLOBAL_BATCH * min(MAX_BATCHES, max(1, math.ceil(samples / (MOST_STEPS * GLOBAL_BATCH))))
    return min(MOST_STEPS, max(LEAST_STEPS, round(samples / batch))), batch


def measured_samples_per_s(settings: Settings) -> float:
    """What one thread trains in a second, measured for two seconds of CPU time in a process of its own."""
    command = ["workers.recipes.speed", ENTRYPOINT, json.dumps(CONFIG), str(GLOBAL_BATCH)]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", *command],
            env=child_environment(settings, environment()),
            capture_output=True,
            text=True,
            timeout=MEASURE_LIMIT_S,
            check=True,
        )
        return float(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        tell(Mark.WARN, "measured", "the throughput could not be measured; `concertina doctor` may tell why")
        return GUESSED_SAMPLES_PER_S

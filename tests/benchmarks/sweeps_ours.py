"""Concertina as a side of the measurement of sweeps: a sweep by REST on the whole of `serve`."""

from __future__ import annotations

import contextlib
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psutil

from service.client import Client
from service.settings import Settings
from service.supervise.home import Home
from service.supervise.processes import belonging_to
from service.supervise.ray_record import read_ray_record
from tests.benchmarks.own_service import whole_service
from tests.benchmarks.sweeps_setting import NUM_TRAIN, Outcome, Search, load_1min, steady_ms, sweep

LIMIT_S = 900.0
LOOK_S = 0.05
FOLLOW_S = 0.5
"""As a page does: each look costs the machine that trains a little. When the sweep ended the service tells."""

QUIET_S, QUIET_LIMIT_S, QUIET_SHARE = 2.0, 60.0, 0.25
SIDE = "concertina"
SPARE = "ray::TrainWorker"


def run(search: Search) -> Outcome:
    """One sweep on a new service. Raises RuntimeError where it does not succeed."""
    with tempfile.TemporaryDirectory(prefix="ct-bench-") as name:
        folder = Path(name) / "home"
        with whole_service(folder, search.parallel) as running:
            _settle(folder, min(search.parallel, Settings.model_fields["spares_per_node"].default))
            with Client(f"http://127.0.0.1:{running.port}", running.token) as client:
                return _measured(client, search)


def _measured(client: Client, search: Search) -> Outcome:
    load, begin_s = load_1min(), time.time()
    sweep_id = client.submit_sweep(sweep(search))["id"]
    while (found := client.get(f"/sweeps/{sweep_id}"))["state"] in ("RUNNING", "PAUSED"):
        if time.time() - begin_s > LIMIT_S:
            raise RuntimeError(f"the sweep has not ended within {LIMIT_S:.0f} s: {found['trials']}")
        time.sleep(FOLLOW_S)
    trials = list(client.sweep_trials(sweep_id))
    if found["state"] != "SUCCEEDED" or found["trials"]["failed"]:
        whys = {trial["reason"] for trial in trials if trial["state"] == "FAILED"}
        raise RuntimeError(f"the sweep is {found['state']}: {found['reason']}; failed trials: {whys}")
    return Outcome(
        side=SIDE,
        seed=search.seed,
        wall_s=_time_s(found["finished_at"]) - begin_s,
        best=float(found["best"]["value"]),
        trials=len(trials),
        epochs=sum(trial["samples"] for trial in trials) / NUM_TRAIN if search.steps is None else 0.0,
        steady_ms=steady_ms([_time_s(trial["finished_at"]) for trial in trials if trial["finished_at"]]),
        load_1min=load,
    )


def _time_s(told: str) -> float:
    return datetime.fromisoformat(told).timestamp()


def _settle(folder: Path, num_spares: int) -> None:
    """Wait until the service is as it is after a while: what it keeps ready is there, and nothing starts any more."""
    until_s = time.monotonic() + QUIET_LIMIT_S
    while _num_spares(folder) < num_spares or _cpu_share(folder) > QUIET_SHARE:
        if time.monotonic() > until_s:
            raise TimeoutError("an idle service keeps no process ready, or its processes work; is the machine busy?")
        time.sleep(LOOK_S)


def _num_spares(folder: Path) -> int:
    """By the title that Ray gives to an actor's process which has been made and is called by nobody."""
    return sum(process.cmdline()[:1] == [SPARE] for process in _of_ray(folder) if process.is_running())


def _cpu_share(folder: Path) -> float:
    """CPUs that Ray's processes use, over some time; new ones count as busy."""
    before = _cpu_s(folder)
    time.sleep(QUIET_S)
    after = _cpu_s(folder)
    return 1.0 if after.keys() - before.keys() else sum(after[p] - before[p] for p in after) / QUIET_S


def _cpu_s(folder: Path) -> dict[int, float]:
    found = {}
    for process in _of_ray(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _of_ray(folder: Path) -> list[psutil.Process]:
    home = Home(folder)
    record, temp_dir = read_ray_record(home.ray_file), home.remembered_temp_dir()
    return [] if record is None or temp_dir is None else belonging_to(temp_dir, record.pid)

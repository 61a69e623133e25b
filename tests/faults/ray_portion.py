"""Kills of the service on a real Ray: one portion of rounds under mixed load, and what the oracle says after it.

Import it only once Ray's environment is set: it imports Ray, and forks processes that have.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

from service.cluster import Cluster
from service.folders import token_file
from service.migrations.upgrade import upgrade
from service.settings import Settings, load_settings
from service.supervise.processes import belonging_to
from service.supervise.ray_record import RayRecord
from tests.cluster.gated import gated_bundle
from tests.faults.diary import read_diary
from tests.faults.evidence import gather
from tests.faults.load import Load
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, RECONCILER, Installation
from tests.waiting import wait_for
from workers.control.roster import Roster

NUM_SAMPLES = 48
PACE_S = 0.02
ORPHANS_S = 60.0
SETTLE_S = 240.0
ROUNDS_A_JOB = 3
ACTORS = ("ray::TrainWorker", "ray::JobController")


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What one portion brought: ``findings`` in the oracle's words, ``wrong`` answers of the API, actors left over."""

    rounds: int
    kills: Mapping[str, int]
    accepted: int
    states: Mapping[str, int]
    steps: int
    answers: Mapping[str, int]
    findings: tuple[str, ...]
    wrong: tuple[str, ...]
    orphans: tuple[str, ...]
    settle_s: float

    @property
    def is_fine(self) -> bool:
        return not (self.findings or self.wrong or self.orphans)


def run_portion(folder: Path, record: RayRecord, *, rounds: int, seed: int) -> Portion:
    """One new installation on this Ray, killed ``rounds`` times."""
    home = folder / "service"
    home.mkdir(mode=0o700)
    settings = load_settings({"home": home, "ray_address": record.address}, {})
    upgrade(settings.database_url)
    with Installation(settings, names=(API, RECONCILER), ray=record) as installation:
        return asyncio.run(_run(installation, record, rounds, random.Random(seed)))


async def _run(installation: Installation, record: RayRecord, rounds: int, rng: random.Random) -> Portion:
    settings = installation.settings
    token = token_file(settings.home)
    wait_for("the API's token", token.exists)
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    async with httpx2.AsyncClient(base_url=installation.url, headers=headers, trust_env=False) as client:
        answer = await client.post(
            "/api/v1/bundles", content=gated_bundle(), headers={"Content-Type": "application/zip"}, timeout=30
        )
        bundle = answer.raise_for_status().json()["id"]
        load = Load(client, rng, lambda number: _spec(number, bundle, settings.home), most_jobs=2, pause_s=0.4)
        kills = await _killed(installation, load, rounds, rng)
        begun_s = time.monotonic()
        states = await load.settle(SETTLE_S, installation.tend)
        settle_s = time.monotonic() - begun_s
    names, processes = await _left(record, settings)
    case = Case(
        evidence=gather(settings),
        notes=read_diary(installation.diary),
        accepted=load.accepted,
        deleted=load.deleted,
        names=names,
    )
    failed = [f"{n} jobs are {state}" for state, n in states.items() if state not in ("SUCCEEDED", "CANCELLED")]
    return Portion(
        rounds=rounds,
        kills=dict(kills),
        accepted=len(load.accepted),
        states=dict(states),
        steps=len({(note.job, note.life, note.step) for note in case.notes}),
        answers=dict(load.answers),
        findings=tuple(str(finding) for finding in judge(case)),
        wrong=(*load.wrong, *failed),
        orphans=(*names, *processes),
        settle_s=round(settle_s, 1),
    )


async def _killed(installation: Installation, load: Load, rounds: int, rng: random.Random) -> Counter[str]:
    """Kill at random moments while the load goes on; how often whom."""
    kills: Counter[str] = Counter()
    async with load.running(num_callers=2):
        for done in range(1, rounds + 1):
            await asyncio.sleep(rng.uniform(0.1, 3.0))
            for name in rng.choice(((API,), (RECONCILER,), (RECONCILER,), (API, RECONCILER))):
                installation.kill(name)
                kills[name] += 1
            installation.tend()
            load.most_jobs = 2 + done // ROUNDS_A_JOB
    return kills


def _spec(number: int, bundle: str, home: Path) -> dict[str, Any]:
    return {
        "name": f"noted-{number}",
        "entrypoint": "train:build",
        "bundle": bundle,
        "config": {"folder": str(home), "num_samples": NUM_SAMPLES, "pace_s": PACE_S},
        "steps": 60 + 20 * (number % 4),
        "workers": {"min": 1, "max": 1 + number % 2},
        "batch": {"global_size": 12, "micro_size": 12},
        "checkpoint": {"every_steps": 10},
    }


async def _left(record: RayRecord, settings: Settings) -> tuple[list[str], list[str]]:
    """Names and processes of actors that are still there when orphans have had their time; spares may stay."""
    installation = gather(settings).installation
    cluster, roster = Cluster(record.address, installation), Roster(installation)
    await cluster.connect()
    try:
        deadline_s = time.monotonic() + ORPHANS_S
        while True:
            names, processes = await cluster.names(), _actor_processes(record)[len(roster.spares()) :]
            if not (names or processes) or time.monotonic() > deadline_s:
                return names, processes
            await asyncio.sleep(1.0)
    finally:
        await cluster.close()


def _actor_processes(record: RayRecord) -> list[str]:
    found = []
    for process in belonging_to(Path(record.temp_dir), record.pid):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if title.startswith(ACTORS):
            found.append(f"{process.pid} {title.strip()}")
    return found

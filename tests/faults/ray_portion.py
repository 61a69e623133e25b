"""Kills of the service on a real Ray: one portion of rounds under mixed load, and what the oracle says after it.

In one of ten rounds the real `serve` takes the place of the two processes, and is killed itself, twice.

Import it only once Ray's environment is set: it imports Ray, and forks processes that have.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from service.folders import token_file
from service.migrations.upgrade import upgrade
from service.settings import load_settings
from service.supervise.home import Home
from service.supervise.ray_record import RayRecord, write_ray_record
from tests.cluster.gated import gated_bundle
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import Finding, Kind, at_rest
from tests.faults.load import Load
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, RECONCILER, Installation
from tests.faults.ray_remains import ray_remains
from tests.faults.whole_serve import WholeServe
from tests.waiting import wait_for

NUM_SAMPLES = 48
PACE_S = 0.02
ORPHANS_S = 60.0
SETTLE_S = 240.0
ROUNDS_A_JOB = 3
ROUNDS_A_SERVE = 10
READY_S = 90.0
SERVE = "serve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What one portion brought: ``findings`` in the oracle's words, ``wrong`` answers of the API.

    ``orphans`` are those of its findings that tell of what was left behind ``ORPHANS_S`` after the last job's end.
    """

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
    Home(home).prepare()
    settings = load_settings({"home": home, "ray_address": record.address}, {})
    upgrade(settings.database_url)
    with Installation(settings, names=(API, RECONCILER), ray=record, is_patient=True) as installation:
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
        kills = await _killed(installation, record, load, rounds, rng)
        await load.submit()
        begun_s = time.monotonic()
        states = await load.settle(SETTLE_S, installation.tend)
        settle_s = time.monotonic() - begun_s
    notes, saves = read_diary(installation.diary), read_saves(installation.diary)

    async def look() -> list[Finding]:
        evidence = gather(settings)
        # Ray's environment is this process's.
        remains = ray_remains(record.address, evidence.installation, Path(record.temp_dir), {})
        case = Case(
            evidence=evidence,
            notes=notes,
            saves=saves,
            accepted=load.accepted,
            deleted=load.deleted,
            remains=remains,
        )
        return judge(case)

    findings = await at_rest(look, ORPHANS_S)
    failed = [f"{n} jobs are {state}" for state, n in states.items() if state not in ("SUCCEEDED", "CANCELLED")]
    return Portion(
        rounds=rounds,
        kills=dict(kills),
        accepted=len(load.accepted),
        states=dict(states),
        steps=len({(note.job, note.life, note.step) for note in notes}),
        answers=dict(load.answers),
        findings=tuple(str(finding) for finding in findings if finding.kind is not Kind.LEFT),
        wrong=(*load.wrong, *failed),
        orphans=tuple(str(finding) for finding in findings if finding.kind is Kind.LEFT),
        settle_s=round(settle_s, 1),
    )


async def _killed(
    installation: Installation, record: RayRecord, load: Load, rounds: int, rng: random.Random
) -> Counter[str]:
    """Kill at random moments while the load goes on; how often whom."""
    kills: Counter[str] = Counter()
    serve = WholeServe(installation.home, record.address)
    try:
        async with load.running(num_callers=2):
            for done in range(1, rounds + 1):
                if done % ROUNDS_A_SERVE == 1:
                    of_serve = done + rng.randrange(min(ROUNDS_A_SERVE, rounds - done + 1))
                await asyncio.sleep(rng.uniform(0.1, 3.0))
                both = (API, RECONCILER)
                for name in both if done == of_serve else rng.choice(((API,), (RECONCILER,), (RECONCILER,), both)):
                    installation.kill(name)
                    kills[name] += 1
                if done == of_serve:
                    kills[SERVE] += await _serve_killed(serve, load, rng)
                    load.client.base_url = installation.url
                    write_ray_record(installation.home.ray_file, replace(record, is_own=False))
                installation.tend()
                load.most_jobs = 2 + done // ROUNDS_A_JOB
    finally:
        serve.clear()
    return kills


async def _serve_killed(serve: WholeServe, load: Load, rng: random.Random) -> int:
    """`serve` finds what the killed ones left, and the next what it left itself; how often it was killed."""
    serve.start()
    load.client.base_url = serve.url
    deadline_s = time.monotonic() + READY_S
    while not await _is_ready(load.client):
        serve.assert_runs()
        assert time.monotonic() < deadline_s, f"serve was not ready within {READY_S:.0f} s"
        await asyncio.sleep(0.05)
    await asyncio.sleep(rng.uniform(0.1, 3.0))
    serve.kill()
    serve.start()
    # This one is killed wherever its start has got to.
    await asyncio.sleep(rng.uniform(0.1, 6.0))
    serve.kill()
    return 2


async def _is_ready(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz", timeout=2)).status_code == 200
    except httpx2.TransportError:
        return False


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

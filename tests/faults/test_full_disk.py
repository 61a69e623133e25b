"""The disk under the home fills up: what is refused is told as passing, and nothing that was accepted is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.folders import token_file
from service.settings import Settings, load_settings
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import Finding, assert_nothing_found, at_rest
from tests.faults.noted import noted_spec
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, Installation
from tests.faults.small_disk import fill, small_disk
from tests.waiting import LIMIT_S, wait_for

__all__ = ["small_disk"]

pytestmark = [pytest.mark.faults, pytest.mark.mount]

STEPS = 800
STEPS_MEANWHILE = 100
PADDING = "x" * 10_000


@pytest.fixture
def cramped(small_disk: Path, migrated_file: Path) -> Settings:
    home = small_disk / "home"
    home.mkdir(mode=0o700)
    shutil.copy(migrated_file, home / "concertina.db")
    return load_settings({"home": home}, {})


def test_a_full_disk_refuses_for_a_while_and_loses_nothing(cramped: Settings) -> None:
    ballast = cramped.home.parent / "ballast"
    accepted: dict[str, str] = {}
    with Installation(cramped, names=(API,)) as installation:
        token = token_file(cramped.home)
        wait_for("the API's token", token.exists)
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        with httpx2.Client(base_url=f"{installation.url}/api/v1", headers=headers, trust_env=False) as client:

            def submit(number: int) -> httpx2.Response:
                spec = noted_spec(number) | {"labels": {}, "config": {"padding": PADDING}}
                answer = client.post("/jobs", json=spec, headers={"Idempotency-Key": f"key-{number}"}, timeout=30)
                if answer.status_code in (200, 201):
                    accepted[f"key-{number}"] = answer.json()["id"]
                return answer

            assert submit(1).status_code == 201
            fill(ballast)
            statuses = [submit(number).status_code for number in range(2, 8)]
            assert set(statuses) <= {201, 503}, statuses
            assert 503 in statuses
            assert client.get("/jobs").status_code == 200, "what is there can still be read"
            ballast.unlink()
            assert [submit(number).status_code for number in range(2, 8)] == [
                200 if status == 201 else 201 for status in statuses
            ]
    evidence = gather(cramped)
    assert_nothing_found(judge(Case(evidence=evidence, accepted=accepted)))
    assert len(evidence.jobs) == 7


@pytest.mark.anyio
async def test_a_job_that_trains_while_the_disk_of_the_service_is_full_for_some_seconds_loses_nothing(
    cramped: Settings, tmp_path: Path
) -> None:
    # What workers write lies elsewhere, as it does where they are on other machines.
    settings = cramped.model_copy(update={"storage": str(tmp_path / "storage")})
    ballast = cramped.home.parent / "ballast"
    installation = Installation(settings)
    installation.diary = tmp_path / "diary"
    with installation:
        token = token_file(cramped.home)
        wait_for("the API's token", token.exists)
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        with httpx2.Client(base_url=f"{installation.url}/api/v1", headers=headers, trust_env=False) as client:
            job_id = client.post("/jobs", json={**noted_spec(1), "steps": STEPS}).json()["id"]

            def job() -> dict[str, Any]:
                installation.tend()
                found: dict[str, Any] = client.get(f"/jobs/{job_id}", timeout=30).json()
                return found

            def last_step() -> int:
                return max((note.step for note in read_diary(installation.diary)), default=0)

            wait_for("the job's steps in the store", lambda: job()["progress"]["step"] > 0)
            fill(ballast)
            before = last_step()
            wait_for("more steps", lambda: last_step() >= before + STEPS_MEANWHILE)
            stored = job()["progress"]["step"]
            assert stored < before + STEPS_MEANWHILE, "the disk was not full"
            ballast.unlink()
            wait_for("the job's end", lambda: job()["state"] == "SUCCEEDED", 2 * LIMIT_S)

        async def look() -> list[Finding]:
            evidence, notes = gather(settings), read_diary(installation.diary)
            remains, saves = await installation.cluster.remains(), read_saves(installation.diary)
            return judge(Case(evidence=evidence, notes=notes, saves=saves, remains=remains))

        assert_nothing_found(await at_rest(look, LIMIT_S))
    assert len(gather(settings).jobs[job_id].points) == STEPS

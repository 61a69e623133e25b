"""The disk under the home fills up: what is refused is told as passing, and nothing that was accepted is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from service.folders import token_file
from service.settings import Settings, load_settings
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.noted import noted_spec
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, Installation
from tests.waiting import wait_for

pytestmark = [pytest.mark.faults, pytest.mark.mount]

DISK = "6m"
PADDING = "x" * 10_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with hardly any room."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def cramped(small_disk: Path, migrated_file: Path) -> Settings:
    home = small_disk / "home"
    home.mkdir(mode=0o700)
    shutil.copy(migrated_file, home / "concertina.db")
    return load_settings({"home": home}, {})


def fill(ballast: Path) -> None:
    """Take all the room that is left."""
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    for size in (65_536, 4096):
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, b"\0" * size)
    os.close(descriptor)


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

"""Labels by which the service knows whose a job is are its own, wherever a user may write some."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from service.labels import OWN
from tests.service.given import spec_document
from tests.service.swept import sweep_document

pytestmark = pytest.mark.anyio


def schedule(target: dict[str, Any]) -> dict[str, Any]:
    return {"name": "nightly", "cron": "0 2 * * *", "time_zone": "UTC", "target": target}


@pytest.mark.parametrize("label", sorted(OWN))
async def test_a_user_cannot_give_them(label: str, client: httpx2.AsyncClient) -> None:
    marked = {"labels": {label: "01ARZ3NDEKTSV4RRFFQ69G5FAV", "team": "vision"}}
    job = {**spec_document(), **marked}
    nameless = {key: value for key, value in job.items() if key != "name"}
    sweep = sweep_document()
    of_sweep = {**sweep, "job": {**sweep["job"], **marked}}
    searched = {**sweep, "space": {**sweep["space"], f"labels.{label}": {"choice": ["a", "b"]}}}
    refusals = [
        ("POST", "/jobs", job, f"/labels/{label}"),
        ("POST", "/jobs/validate", job, f"/labels/{label}"),
        ("PUT", "/configurations/base", nameless, f"/labels/{label}"),
        ("POST", "/sweeps", of_sweep, f"/job/labels/{label}"),
        ("POST", "/sweeps", searched, f"/space/labels.{label}"),
        ("POST", "/schedules", schedule({"job": job}), f"/target/job/labels/{label}"),
        ("POST", "/schedules", schedule({"sweep": of_sweep}), f"/target/sweep/job/labels/{label}"),
    ]
    for method, path, document, pointer in refusals:
        answer = await client.request(method, f"/api/v1{path}", json=document)
        assert answer.status_code == 422, (path, answer.text)
        [problem] = answer.json()["errors"]
        assert problem["pointer"] == pointer
        assert f"name it otherwise, my-{label} say" in problem["detail"]
    for path, key in (("/jobs", "jobs"), ("/sweeps", "sweeps"), ("/schedules", "schedules")):
        assert (await client.get(f"/api/v1{path}")).json()[key] == []

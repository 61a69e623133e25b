"""A service whose bundles, checkpoints and outputs are in an object store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import safetensors.numpy

from service.folders import BUNDLES, JOBS, checkpoints_place, output_place
from service.reconciler.launching import Launching
from service.services import build_services
from service.settings import load_settings
from tests.object_store import ObjectStore
from tests.service.given import checkpoint, leader, spec_document, zip_bytes
from tests.service.test_api_jobs import assert_problem
from tests.stored_checkpoint import store_checkpoint
from workers.storage import read
from workers.storage_urls import open_storage

pytestmark = pytest.mark.anyio

API = "/api/v1"


async def test_bundles_weights_and_files_go_through_it_and_leave_with_their_job(
    tmp_path: Path, running_app: Callable[..., Any]
) -> None:
    with ObjectStore() as objects:
        variables = {"CONCERTINA_STORAGE_OPTIONS": json.dumps(objects.options)}
        settings = load_settings({"home": tmp_path / "home", "storage": objects.make_bucket() + "/team/"}, variables)
        assert load_settings({}, settings.as_environment()) == settings
        storage = open_storage(settings.storage_url)
        async with running_app(settings) as client:
            data = zip_bytes({"train.py": "x = 1"})
            bundle = (await client.post(f"{API}/bundles", content=data)).json()
            assert [read(storage, key) for key in storage.keys(BUNDLES)] == [data]
            refused = await client.post(f"{API}/bundles", content=b"no zip")
            assert refused.status_code == 422
            assert len(storage.keys(BUNDLES)) == 1
            spec = spec_document(entrypoint="train:build", bundle=bundle["id"])
            job = (await client.post(f"{API}/jobs", json=spec)).json()
            await has_what_a_job_left(client, settings.storage_url, job["id"], settings)
            assert (await client.post(f"{API}/jobs/{job['id']}/cancel")).status_code == 200
            assert (await client.delete(f"{API}/jobs/{job['id']}")).status_code in (200, 204)
            assert storage.keys(JOBS) == []


async def test_storage_that_is_away_is_told_as_such(tmp_path: Path, running_app: Callable[..., Any]) -> None:
    with ObjectStore() as objects:
        settings = load_settings({"home": tmp_path / "home", "storage": "s3://no-such-bucket"}, {})
        settings = settings.model_copy(update={"storage_options": objects.options})
        async with running_app(settings) as client:
            answer = await client.post(f"{API}/bundles", content=zip_bytes({"train.py": "x = 1"}))
            assert_problem(answer, 503, "UNAVAILABLE")
            assert list((tmp_path / "home" / "uploads").iterdir()) == []


async def has_what_a_job_left(client: httpx2.AsyncClient, url: str, job_id: str, settings: Any) -> None:
    store_checkpoint(open_storage(checkpoints_place(url, job_id)), checkpoint(20), {"w": b"weights"})
    open_storage(output_place(url, job_id)).write("plots/a.txt", [b"drawn"])
    services = build_services(settings)
    fence = await leader(services.store)
    await services.store.reconciler.register_checkpoints(job_id, [checkpoint(20)], fence)
    job = await services.store.reconciler.job(job_id)
    assert job is not None
    launch = await Launching(settings, services.store.reconciler, settings.home).launch(job)
    assert launch.storage.checkpoints == checkpoints_place(url, job_id)
    assert launch.storage.options == settings.storage_options != {}
    assert "endpoint_url" not in repr(launch)
    assert launch.bundle_file is not None
    assert launch.bundle_file.startswith(f"{url}/{BUNDLES}/")
    await services.store.close()
    listed = (await client.get(f"{API}/jobs/{job_id}/checkpoints")).json()["checkpoints"]
    assert [c["step"] for c in listed] == [20]
    weights = await client.get(f"{API}/jobs/{job_id}/checkpoints/20")
    assert safetensors.numpy.load(weights.content)["w"].tobytes() == b"weights"
    [file] = (await client.get(f"{API}/jobs/{job_id}/files")).json()["files"]
    assert (file["path"], file["size_bytes"]) == ("plots/a.txt", 5)
    assert (await client.get(f"{API}/jobs/{job_id}/files/plots/a.txt")).content == b"drawn"
    for path in ("plots", "plots/b.txt", "../checkpoints/manifests/x"):
        assert (await client.get(f"{API}/jobs/{job_id}/files/{path}")).status_code == 404

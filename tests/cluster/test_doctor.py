"""`doctor` asks a real Ray, of somebody else's, what the service would meet there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from service.cli.doctor_reach import check_cluster
from service.settings import Settings, load_settings
from service.supervise.ports import free_port
from service.supervise.supervisor import Mark
from tests.cluster.foreign_ray import LOOPBACK, end_ray, start_head

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TOKEN = "f" * 64


def test_a_ray_is_told_with_its_version_and_one_that_refuses_our_token_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ct-"))  # Ray's sockets need a short path
    port = free_port()
    settings: Settings = load_settings({"home": tmp_path, "ray_address": f"127.0.0.1:{port}"}, {})
    for name, value in {**LOOPBACK, "RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_MODE": "token"}.items():
        monkeypatch.setenv(name, value)
    try:
        start_head(folder, f"--port={port}", "--num-cpus=0", "--node-ip-address=127.0.0.1", variables={})
        found = check_cluster(settings)
        assert (found.mark, found.remedy) == (Mark.OK, ""), found
        assert ": Ray 2." in found.text
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        refused = check_cluster(settings)
        assert refused.mark is Mark.FAIL
        assert "refuses our token" in refused.text
        assert "0" * 64 not in repr(refused)
    finally:
        end_ray(folder)

"""``concertina configuration``, over a real API."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.service.cli.calls import SPEC, Run


def test_a_configuration_lives_from_its_job_file_to_its_deletion(call: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(SPEC))
    assert "no configurations" in call("configuration", "list").stdout
    assert "is at version 1" in call("configuration", "put", str(file)).stdout
    assert "is at version 2" in call("configuration", "put", str(file), "--set", "seed=3").stdout
    printed = call("configuration", "get", "digits").stdout
    file.write_text(printed)
    assert yaml.safe_load(printed)["seed"] == 3
    # What is printed is a job file again.
    assert "is at version 2" in call("configuration", "put", str(file)).stdout
    assert "digits  2" in call("configuration", "list").stdout
    assert "by hand" in call("configuration", "history", "digits").stdout
    refused = call("configuration", "put", str(file), "--set", "steps=0")
    assert (refused.returncode, "/steps" in refused.stderr) == (2, True)
    assert call("configuration", "delete", "digits", "--yes").returncode == 0
    assert call("configuration", "get", "digits").returncode == 4

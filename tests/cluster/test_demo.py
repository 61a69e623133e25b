"""What the demonstration shows, on a job of half a minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli.demo import demo_spec
from service.cli.scenario import Scenario
from service.settings import load_settings
from tests.cluster.serving import end_everything, serving

pytestmark = pytest.mark.cluster


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    yield folder
    end_everything(folder)


@pytest.mark.timeout(400)
def test_the_demonstration_resizes_loses_a_worker_and_counts_every_sample(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = demo_spec(load_settings({"home": home}), wanted_s=40)
    with serving(home) as served, served.client() as client:
        assert Scenario(client, time.monotonic(), stretch_s=1).play(spec) == 0
        told = capsys.readouterr().out
        for sentence in (
            "Grew from 1 to 2 workers",
            "was lost",
            "went on with 1 of 2",
            "Shrank from 2 to 1",
            "no step lost",
        ):
            assert sentence in told, told
        assert f"{spec['steps'] * 256:,} samples in {spec['steps']:,} steps, each counted once" in told
        assert served.stop() == 0

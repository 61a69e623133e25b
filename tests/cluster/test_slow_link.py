"""``communication: auto`` of a whole job over a slow cable: it sees that, tries another scheme, keeps it, tells why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from service.packing import pack
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.machines import Machines, two_machines
from tests.cluster.serving import Serving, whole_service
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.network, pytest.mark.timeout(400)]

MBIT = 50.0
NUM_NEWEST = 5
DENSE_BYTES = 4 * 4 * (512 * 512 + 512)
"""They take two thirds of a second, and the rest of a step some milliseconds."""

LEAST_GAIN = 2.0
"""It is five on a machine that has nothing else to do."""

LIMIT_S = 120.0
TASK = """
import torch
from torch import nn

from workers.task import TrainingTask

WIDTH, LAYERS = 512, 4


def build(config):
    data = torch.utils.data.TensorDataset(torch.randn(4096, WIDTH), torch.randn(4096, WIDTH))
    return TrainingTask(
        model=nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))),
        train_data=data,
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    )
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with two_machines(cpus_here=1, cpus_there=1) as made:
        made.shape(MBIT)
        yield made


@pytest.fixture
def attached(machines: Machines, tmp_path: Path) -> Iterator[Serving]:
    variables, foreign = {"HOME": str(machines.folder)}, machines.foreign
    flags, settings = ("--ray-address", machines.address), {"gather_s": 60}
    with whole_service(tmp_path / "home", *flags, settings=settings, variables=variables, foreign=foreign) as started:
        yield started


class Afar:
    """A job with a worker on either machine, and what is told of its gradients."""

    def __init__(self, client: Client, folder: Path) -> None:
        (folder / "train.py").write_text(TASK)
        spec = {
            "name": "afar",
            "entrypoint": "train:build",
            "bundle": client.upload(pack(folder).data)["id"],
            "steps": 100_000,
            "workers": 2,
            "batch": {"global_size": 8},
            "optimizer": {"lr": 1e-4},
        }
        self._client, self.id = client, str(client.submit(spec)["id"])

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The rows of ``communication: auto``."""
        found = self._client.timeline(self.id)
        return [row for row in found if (row["kind"], row["actor"]) == (kind, "communication")]

    def wait_kept(self, scheme: str) -> None:
        """Wait until a trial of it is over that keeps it, and explained; on a busy machine one may not."""
        timeline = lambda: "\n".join(map(str, self._client.timeline(self.id)))  # noqa: E731
        wait_for(f"{scheme} to be kept", lambda: self.kept()[-1:] == [scheme], LIMIT_S, timeline)
        wait_for(
            "its explanation", lambda: self._newest_why() in self.explained(), LIMIT_S, lambda: str(self.explained())
        )

    def _newest_why(self) -> str:
        return f"With {self.told('probation')[-1]['reason'].removeprefix('with ')}."

    def kept(self) -> list[str]:
        """The schemes that stayed when they had been tried, the oldest first."""
        return [row["after"]["scheme"] for row in self.told("probation") if row["after"]["is_kept"]]

    def explained(self) -> list[str]:
        return list(self._client.get(f"/jobs/{self.id}/explain")["details"])

    def wait_sending(self, are_so: Callable[[float], bool]) -> None:
        """Wait until each worker's bytes in one of the newest steps are so: the least, as TCP sends some again.

        Points of metrics may come later than the verdict on their steps.
        """
        wait_for("bytes of the newest steps", lambda: are_so(self._sent_bytes()), LIMIT_S, self._tried)

    def _sent_bytes(self) -> float:
        """NaN, which is nothing, while there are no such steps."""
        told = self._client.get(f"/jobs/{self.id}/metrics", keys="wire_bytes", max_points=10_000)["points"]
        newest = [point["values"]["wire_bytes"] for point in told[-NUM_NEWEST:]]
        return float(min(newest)) if len(newest) == NUM_NEWEST else nan

    def _tried(self) -> str:
        return str([self._sent_bytes(), *map(self.told, ("exchange", "probation"))])

    def reported(self) -> list[dict[str, Any]]:
        found = self._client.get(f"/jobs/{self.id}/report")["sections"]
        return [one for one in found if one["actor"] == "communication"]

    def wait_reported(self) -> None:
        wait_for("steps for the report", lambda: all(one["gain"] is not None for one in self.reported()), LIMIT_S)

    def begin_again(self) -> dict[str, Any]:
        """Pause and resume; what the timeline has of gradients where it starts."""
        self._command("pause", "PAUSED")
        self._command("resume", "RUNNING")
        starts = [row["after"] for row in self._client.timeline(self.id) if "communication" in row["after"]]
        return dict(starts[-1]["communication"])

    def end(self) -> None:
        self._command("cancel", "CANCELLED")

    def _command(self, command: str, state: str) -> None:
        self._client.command(self.id, command)
        wait_for(f"state {state}", lambda: self._client.job(self.id)["state"] == state, LIMIT_S)


def test_a_slow_link_is_made_bearable_and_a_link_that_is_fast_again_left_alone(
    attached: Serving, machines: Machines, tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    with attached.client() as client:
        job = Afar(client, folder)
        try:
            job.wait_kept("int4")
            job.wait_sending(lambda sent: sent < DENSE_BYTES / 7)
            job.wait_reported()
            reported, *_ = job.reported()
            resumed = job.begin_again()
            machines.unshape()
            job.wait_kept("none")
            job.wait_sending(lambda sent: sent > DENSE_BYTES)
        finally:
            job.end()
        trials = [row for row in job.told("exchange") if "expected_gain" in row["after"]]  # turning back has none
        kept = job.told("probation")[0]
    tried, left = trials[0], next(row for row in trials if row["after"]["scheme"] == "none")
    assert (tried["before"], tried["after"]["scheme"]) == ({"scheme": "none"}, "int4")
    assert tried["reason"].endswith("times as fast")
    assert kept["after"]["is_kept"]
    assert kept["after"]["samples_per_s"] > LEAST_GAIN * kept["before"]["samples_per_s"]
    assert (resumed["scheme"], "judged last before this start" in resumed["why"]) == ("int4", True)
    assert reported["name"] == "Gradients none → int4"
    assert reported["gain"] > LEAST_GAIN
    assert left["before"] == {"scheme": "int4"}
    assert "none, which loses less than int4, is expected" in left["reason"]
    assert_service_at_rest(attached)

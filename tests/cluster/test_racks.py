"""Whole jobs over two racks of a real Ray: what labels say, what links say, and which of both is told and used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from service.packing import pack
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.racked import FAR, HERE, NEAR, Racked, two_racks
from tests.cluster.serving import Serving, whole_service
from tests.waiting import wait_for
from workers.racks import LABEL

pytestmark = [pytest.mark.cluster, pytest.mark.network, pytest.mark.timeout(400)]

MBIT = 50.0
LABELS = {HERE: "a", NEAR: "b", FAR: "b"}
"""Of these the near machine's lies: it shares its rack with this one."""

LIMIT_S = 90.0
TASK = """
import time
from itertools import count
from pathlib import Path

import torch
from torch import nn

from workers.task import TrainingTask

WIDTH = 512


def build(config):
    data = torch.utils.data.TensorDataset(torch.randn(4096, WIDTH), torch.randn(4096, WIDTH))
    calls = count()

    def loss(model, batch):
        until_s = time.monotonic() + 60.0
        while next(calls) > 2 and not Path(config["gate"]).exists():
            assert time.monotonic() < until_s, "nobody opened the gate"
            time.sleep(0.05)
        return (model(batch[0]) - batch[1]).square().mean()

    return TrainingTask(
        model=nn.Linear(WIDTH, WIDTH),
        train_data=data,
        loss=loss,
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    )
"""


@pytest.fixture(scope="module")
def racked() -> Iterator[Racked]:
    with two_racks(LABELS, MBIT) as made:
        yield made


@pytest.fixture(scope="module")
def attached(racked: Racked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home, variables = tmp_path_factory.mktemp("racks") / "home", {"HOME": str(racked.folder)}
    flags, foreign = ("--ray-address", racked.address), racked.foreign
    with whole_service(home, *flags, settings={"gather_s": 60}, variables=variables, foreign=foreign) as started:
        yield started
        assert_service_at_rest(started)


@pytest.fixture(scope="module")
def bundle(attached: Serving, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(TASK)
    with attached.client() as client:
        return str(client.upload(pack(folder).data)["id"])


class Afar:
    """A job with a worker on each machine, which stands at its gate until that is opened."""

    def __init__(self, client: Client, bundle: str, gate: Path, communication: object) -> None:
        spec = {
            "name": "afar",
            "entrypoint": "train:build",
            "bundle": bundle,
            "config": {"gate": str(gate)},
            "steps": 12,
            "workers": 3,
            "batch": {"global_size": 12, "micro_size": 12},
            "optimizer": {"lr": 1e-4},
            "communication": communication,
        }
        self._client, self._gate = client, gate
        self.id = str(client.submit(spec)["id"])

    def wait_in_racks(self) -> dict[str, Any]:
        """What it tells of its racks, once it trains."""
        self._wait("training in racks", lambda job: job["state"] == "RUNNING" and job["racks"] is not None)
        found: dict[str, Any] = self._client.job(self.id)["racks"]
        return found

    def explained(self) -> list[str]:
        return list(self._client.get(f"/jobs/{self.id}/explain")["details"])

    def told(self) -> list[dict[str, Any]]:
        """The rows of its timeline about racks."""
        return [row for row in self._client.timeline(self.id) if row["actor"] == "racks"]

    def end(self) -> None:
        self._gate.touch()
        self._wait("its end", lambda job: job["state"] == "SUCCEEDED")

    def _wait(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        def is_so() -> bool:
            job = self._client.job(self.id)
            assert job["state"] != "FAILED", self._client.logs(self.id).text[-3000:]
            return holds(job)

        wait_for(what, is_so, LIMIT_S, lambda: str(self._client.timeline(self.id)))


@pytest.mark.parametrize("communication", ["auto", {"scheme": "bf16", "options": {"across": "int4"}}], ids=str)
def test_racks_are_those_of_links_and_a_label_that_lies_is_contradicted(
    communication: object, attached: Serving, racked: Racked, bundle: str, tmp_path: Path
) -> None:
    with attached.client() as client:
        job = Afar(client, bundle, tmp_path / "go", communication)
        found, nodes = job.wait_in_racks(), {node["name"]: node for node in client.get("/cluster")["nodes"]}
        told = job.explained()
        job.end()
        [row] = job.told()
        log = client.logs(job.id).text
    at = {machine: nodes[address] for machine, address in racked.addresses.items()}
    machine_of = {worker["worker_id"]: machine for machine, node in at.items() for worker in node["workers"]}
    rack_of = {machine_of[worker["worker_id"]]: worker["rack"] for worker in found["workers"]}
    assert rack_of[HERE] == rack_of[NEAR] != rack_of[FAR], log
    assert {machine_of[worker["worker_id"]]: worker["label"] for worker in found["workers"]} == LABELS
    assert {machine: node["rack"] for machine, node in at.items()} == LABELS
    assert found["found_by"] == "links"
    # A small message is past the cable before that has counted it all. What takes 10 ms takes some slices of a
    # processor more on a busy machine; of bytes that were taken for bits there would be an eighth.
    assert 0.2e6 * MBIT < found["across"]["bytes_per_s"] * 8 < 2e6 * MBIT
    assert found["inside"]["bytes_per_s"] > found["across"]["bytes_per_s"]
    assert 0.0 < found["inside"]["latency_s"] < 1.0
    disputed = {(*sorted(map(machine_of.get, one["worker_ids"])), one["is_one_label"]) for one in found["disputes"]}
    assert disputed == {(FAR, NEAR, True), (HERE, NEAR, False)}
    assert [len(node["rack_doubts"]) for node in at.values()] == [1, 2, 1]
    assert (row["kind"], row["after"]["found_by"]) == ("exchange", "links")
    assert LABEL in row["reason"]
    assert f"on node {at[NEAR]['id'][:8]}" in row["reason"]
    assert found["told"] in told

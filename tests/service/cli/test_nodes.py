"""``concertina node``, over a real API whose cluster was seen by a reconciler that is gone."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from service.records import ClusterView, NodeView
from service.store.opening import open_store
from tests.service.cli.calls import Api, Run
from tests.service.given import leader

NODES = (
    NodeView(node_id="aa11" * 14, name="one", is_alive=True, total={"cpus": 4.0}, free={"cpus": 4.0}),
    NodeView(node_id="aa22" * 14, name="two", is_alive=True, total={"cpus": 4.0}, free={"cpus": 4.0}),
    NodeView(node_id="bb33" * 14, name="gone", is_alive=False, total={}, free={}),
)


@pytest.fixture
def cluster(api: Api) -> None:
    async def see() -> None:
        store = open_store(f"sqlite:///{api.home / 'concertina.db'}", time.time)
        await store.reconciler.put_cluster(ClusterView(is_up=True, nodes=NODES), await leader(store))
        await store.close()

    asyncio.run(see())


@pytest.mark.usefixtures("cluster")
def test_a_node_is_taken_out_of_use_and_back_by_name_or_beginning_of_its_id(call: Run) -> None:
    assert "aa11aa11aa11" in call("cluster").stdout
    drained = call("node", "drain", "one", "--reason", "a [new] disk")
    assert (drained.returncode, drained.stderr) == (0, "")
    assert drained.stdout == "one (aa11aa11aa11): drained: a [new] disk\n"
    found = json.loads(call("node", "quarantine", "aa2", "-o", "json").stdout)
    assert (found["name"], found["duty"]) == ("two", "quarantined")
    assert "drained" in call("cluster").stdout
    assert call("node", "uncordon", "aa11").stdout == "one (aa11aa11aa11): active\n"


@pytest.mark.usefixtures("cluster")
def test_what_is_no_node_or_means_several_is_told(call: Run) -> None:
    several = call("node", "drain", "aa")
    assert several.returncode == 2
    assert "'aa' means 2 nodes: aa11aa11aa11 (one), aa22aa22aa22 (two); give more of the id" in several.stderr
    for reference in ("gone", "bb", "three/../two"):
        missing = call("node", "drain", reference)
        assert missing.returncode == 4
        assert "`concertina cluster` lists them" in missing.stderr
    assert call("node", "drain", "one", "--reason", "x" * 501).returncode == 2

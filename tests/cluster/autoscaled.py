"""A Ray of the test's own whose autoscaler adds nodes, which are processes on this machine, and takes them away."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.supervise.ports import free_port
from tests.cluster.foreign_ray import LOOPBACK, OBJECT_STORE_BYTES, Foreign, end_ray, start_head

IDLE_S = 12.0
HEAD_ID = "f" * 51 + "00000"
HEAD_TYPE = "ray.head.default"
"""The name that the provider gives to its head."""


def _config(address: str, max_nodes: int) -> dict[str, Any]:
    """Ray's provider for its own tests, named as external: under its own name it needs a file that is not shipped."""
    provider = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    worker = {
        "resources": {"CPU": 1, "object_store_memory": OBJECT_STORE_BYTES},
        "node_config": {},
        "min_workers": 0,
        "max_workers": max_nodes,
    }
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "tests",
        "max_workers": max_nodes,
        "head_node_type": HEAD_TYPE,
        "upscaling_speed": 100,
        "idle_timeout_minutes": IDLE_S / 60,
        "provider": {
            "type": "external",
            "module": provider,
            "gcs_address": address,
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
        },
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "worker": worker,
        },
        **{f"{name}_commands": [] for name in lists},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
    }


@contextmanager
def autoscaled_ray(max_nodes: int) -> Iterator[tuple[str, Foreign]]:
    """Its address, and itself for the oracle; the head has one CPU, as each of up to ``max_nodes`` more has.

    All of it ends with the block.
    """
    folder = Path(tempfile.mkdtemp(prefix="ct-scaled-"))
    config = folder / "autoscaling.json"
    port = free_port()
    address = f"127.0.0.1:{port}"
    config.write_text(json.dumps(_config(address, max_nodes)))
    place = ("--node-ip-address=127.0.0.1", f"--port={port}")
    identity = {"RAY_CLOUD_INSTANCE_ID": HEAD_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID, "RAY_FAKE_CLUSTER": "1"}
    autoscaler = {"RAY_enable_autoscaler_v2": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    try:
        start_head(
            folder,
            *(*place, "--num-cpus=1", f"--autoscaling-config={config}"),
            variables={**LOOPBACK, **identity, **autoscaler},
        )
        yield address, Foreign(folder=folder)
    finally:
        end_ray(folder)

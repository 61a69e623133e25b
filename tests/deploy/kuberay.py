"""What KubeRay makes of a RayCluster: with what each node is started, and what its container gets besides.

After the operator's controllers/ray/common/pod.go; without its probes, for which ours stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.deploy.manifests import NAMESPACE, manifest

HEAD_SERVICE = f"ray-head-svc.{NAMESPACE}.svc.cluster.local"
HEAD_NAMES = (HEAD_SERVICE, HEAD_SERVICE.removesuffix(".cluster.local"))
PORT = 6379
SHARED_MEMORY = "/dev/shm"
UNITS = {"Mi": 2**20, "Gi": 2**30}


def start_words(name: str) -> list[str]:
    """Command and arguments of the container ``ray-head`` or ``ray-worker``."""
    group, is_head = _group(name)
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    number, unit = re.findall(r"\d+|\D+", limits["memory"])
    options: dict[str, str] = {
        "num-cpus": limits["cpu"],
        **group["rayStartParams"],
        "memory": str(int(number) * UNITS[unit]),
        "metrics-export-port": "8080",
        "dashboard-agent-listen-port": "52365",
        "block": "true",
    }
    options |= {"dashboard-host": "0.0.0.0", "no-monitor": "true"} if is_head else {"address": _address(is_head)}
    start = "ray start --head" if is_head else "ray start"
    return ["/bin/bash", "-c", "--", f"ulimit -n 65536; {start} {' '.join(map(_option, options.items()))}"]


def more_environment(name: str) -> dict[str, str]:
    """What the container gets beside what its manifest says."""
    group, is_head = _group(name)
    own = {"RAY_enable_autoscaler_v2": "1"} if is_head else {"FQ_RAY_IP": HEAD_SERVICE}
    return {
        "RAY_CLUSTER_NAME": "ray",
        "RAY_CLOUD_INSTANCE_ID": name,
        "RAY_NODE_TYPE_NAME": "headgroup" if is_head else group["groupName"],
        "RAY_PORT": str(PORT),
        "RAY_ADDRESS": _address(is_head),
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
        "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
        "REDIS_PASSWORD": "",
        **own,
    }


def _group(name: str) -> tuple[Mapping[str, Any], bool]:
    spec = manifest("RayCluster", "ray")["spec"]
    return (spec["headGroupSpec"], True) if name == "ray-head" else (spec["workerGroupSpecs"][0], False)


def _address(is_head: bool) -> str:
    return f"127.0.0.1:{PORT}" if is_head else f"{HEAD_SERVICE}:{PORT}"


def _option(given: tuple[str, str]) -> str:
    name, value = given
    if value in ("true", "false") and name != "include-dashboard":
        return f"--{name}" if value == "true" else ""
    return f"--{name}={value}"

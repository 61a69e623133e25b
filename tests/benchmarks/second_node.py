"""The program of a second Ray node on this machine: ``python -m tests.benchmarks.second_node ADDRESS [GPUS]``.

The address is a head's; so many GPUs are counted, whether they are there or not. `ray start` refuses a second node
where Ray keeps to loopback, so this makes one as Ray's own cluster tests do. It says ``STARTED`` when it has joined,
and ends with standard input.
"""

from __future__ import annotations

import sys

NODE_IP = "127.0.0.2"
"""Not the head's, so that no driver takes this node for its own."""

STARTED = "the node has joined"
OBJECT_STORE_BYTES = 200_000_000


def main() -> None:
    """Run a node with one CPU."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    params = RayParams(
        gcs_address=sys.argv[1],
        node_ip_address=NODE_IP,
        num_cpus=1,
        num_gpus=int(sys.argv[2]) if len(sys.argv) > 2 else 0,
        object_store_memory=OBJECT_STORE_BYTES,
        node_manager_port=0,
        min_worker_port=0,
        max_worker_port=0,
        dashboard_agent_listen_port=0,
        include_log_monitor=False,
    )
    Node(params, head=False, shutdown_at_exit=True, spawn_reaper=False)
    print(STARTED, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

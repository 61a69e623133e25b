"""Ray's nodes on this machine, found as Ray's drivers find them: among the processes that one sees."""

from __future__ import annotations

import contextlib

import psutil

from service.supervise.processes import Identity

_NODE_ID = "--node_id="


def raylets_here() -> dict[str, Identity]:
    """The process of each living node, by the node's id; looks at every process, which takes some milliseconds."""
    found: dict[str, Identity] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "raylet":
                identity = Identity(process.pid, process.create_time())
                found |= {a.removeprefix(_NODE_ID): identity for a in process.cmdline() if a.startswith(_NODE_ID)}
    return found

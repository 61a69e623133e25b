"""``python -m service.probes.ray_link``: asks the Ray of the settings what the reconciler would, without joining it.

Prints ``{seen, why}``: ``why`` it cannot be used, empty where it can.
"""

from __future__ import annotations

import asyncio
import json

from service.cluster import Cluster
from service.ports import ClusterAwayError
from service.settings import load_settings


async def look(address: str) -> dict[str, str]:
    """Whether it answers, takes our token, has our version, and has a node on this machine."""
    cluster = Cluster(address, "doctor")
    if not await cluster.is_reachable():
        return {"seen": "", "why": f"nothing answers at {address}"}
    try:
        return {"seen": await cluster.look(), "why": ""}
    except ClusterAwayError as error:
        return {"seen": "", "why": str(error)}


if __name__ == "__main__":
    wanted = load_settings().ray_address
    assert wanted is not None, "asked only where an address is set"
    print(json.dumps(asyncio.run(look(wanted))), flush=True)

"""What an autoscaler was asked for and what came of it, between two looks at the cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from service.demand import sentences
from service.records import Autoscaling, ClusterView


class Happened(NamedTuple):
    """An event of the cluster; ``node_id`` is None where it is not about one node."""

    node_id: str | None
    text: str


def happened(before: ClusterView, after: ClusterView, names: Mapping[str, str]) -> Iterator[Happened]:
    """What is new in the later look; nothing where one of them saw no autoscaler. ``names`` are the jobs' by id."""
    if before.autoscaling is None or after.autoscaling is None or not (before.is_up and after.is_up):
        return
    yield from (Happened(None, text) for text in _decided(before.autoscaling, after.autoscaling, names))
    was, now = ({node.node_id: node.name for node in view.nodes if node.is_alive} for view in (before, after))
    yield from (Happened(node_id, f"Node {name} came.") for node_id, name in now.items() if node_id not in was)
    yield from (Happened(node_id, f"Node {name} went.") for node_id, name in was.items() if node_id not in now)


def _decided(before: Autoscaling, after: Autoscaling, names: Mapping[str, str]) -> Iterator[str]:
    wanted_by = tuple(job_id for job_id in after.wanted_by if job_id not in before.wanted_by)
    if after.is_infeasible:
        if not before.is_infeasible:
            yield from sentences(Autoscaling(is_infeasible=True, wanted_by=after.wanted_by), names)
    else:
        yield from sentences(Autoscaling(wanted_by=wanted_by), names)
    if before.wanted_by and not after.wanted_by:
        yield "The autoscaler is asked for no more nodes."
    yield from sentences(Autoscaling(failures=tuple(why for why in after.failures if why not in before.failures)), {})

from __future__ import annotations

from service.records import NodeView
from service.spares import wanted


def node(name: str, free: float, total: float = 2.0) -> NodeView:
    return NodeView(
        node_id=name,
        name=name,
        is_alive=True,
        total={"cpus": total, "gpus": 0.0, "memory_bytes": 8.0},
        free={"cpus": free, "gpus": 0.0, "memory_bytes": 8.0},
    )


NODES = (node("idle", 2.0), node("used", 1.5), node("nearly full", 0.5))


def test_there_are_never_more_than_could_become_workers() -> None:
    assert wanted(NODES, 1, has_autoscaler=False) == {"idle": 1, "used": 1, "nearly full": 0}
    assert wanted(NODES, 3, has_autoscaler=False) == {"idle": 2, "used": 1, "nearly full": 0}


def test_none_keeps_an_idle_node_from_an_autoscaler() -> None:
    assert wanted(NODES, 1, has_autoscaler=True) == {"used": 1, "nearly full": 0}


def test_none_are_kept_where_none_are_wanted() -> None:
    assert wanted(NODES, 0, has_autoscaler=False) == {}

"""Whether a worker has a GPU, or CPUs instead (``resources.cpus_instead``): its node alone decides that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.control.names import NODE_ID_LABEL
from workers.spec_parts import Resources

EPSILON, RAY_UNIT = 1e-6, 1e-4


@dataclass(frozen=True, slots=True)
class Shape:
    """What a new worker takes of a node, and the nodes that it shall not be on."""

    resources: Resources
    avoids: frozenset[str]

    def num_fitting(self, free: Mapping[str, Mapping[str, float]]) -> int:
        """How many such workers nodes have room for now; ``free`` is what each has left, by Ray's names."""
        room = {kind: amount for kind, amount in self._amounts.items() if amount > 0}
        return sum(
            min(int(left.get(kind, 0.0) / amount + EPSILON) for kind, amount in room.items())
            for node_id, left in free.items()
            if node_id not in self.avoids
        )

    def is_like(self, asked: Mapping[str, float]) -> bool:
        """Whether that is what Ray makes of it, who counts in ten-thousandths."""
        return all(abs(asked.get(kind, 0.0) - amount) < RAY_UNIT for kind, amount in self._amounts.items())

    @property
    def _amounts(self) -> dict[str, float]:
        asked = self.resources
        return {"CPU": asked.cpus, "GPU": asked.gpus_taken, "memory": float(asked.memory_bytes or 0)}

    @property
    def options(self) -> dict[str, Any]:
        """What Ray is told of its process."""
        asked = self.resources
        options: dict[str, Any] = {"num_cpus": asked.cpus, "num_gpus": asked.gpus_taken}
        if asked.memory_bytes is not None:
            options["memory"] = asked.memory_bytes
        if self.avoids:
            options["label_selector"] = {NODE_ID_LABEL: f"!in({','.join(sorted(self.avoids))})"}
        return options


def either(resources: Resources, avoids: frozenset[str], with_gpus: frozenset[str]) -> tuple[Shape, Shape]:
    """The shapes that a worker may have, on none of the nodes ``avoids``: with a GPU, and where no node has one."""
    return Shape(resources, avoids), Shape(resources.without_gpu(), avoids | with_gpus)


def choose(
    shapes: Sequence[Shape],
    free: Mapping[str, Mapping[str, float]],
    coming: Sequence[Resources],
    in_vain: Resources | None = None,
) -> Shape | None:
    """The first of the shapes for which there is room, beside those who are ``coming`` and have no place yet.

    What was tried ``in_vain`` comes last: amounts alone do not tell that it has room.

    None where there is no room, or where it may be just what they get: Ray would let a worker wait for the one shape
    while there is room for the other, and may count those who are coming already or not.
    """
    for shape in sorted(shapes, key=lambda shape: shape.resources == in_vain):
        num_fitting = shape.num_fitting(free)
        if num_fitting > coming.count(shape.resources):
            return shape
        if num_fitting > 0:
            return None
    return None

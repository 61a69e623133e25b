"""The list of crash points within the adapter of Ray is complete; none of them needs a Ray to tell that."""

from __future__ import annotations

import pytest

from tests.faults.ray_paths import ADAPTER, LEFT_OUT, POINTS, points

SOURCE = ADAPTER.read_text()


def test_after_every_call_on_ray_a_reconciler_dies_or_it_is_said_why_not() -> None:
    dies = {point for point, _ in POINTS}
    assert not dies & LEFT_OUT.keys()
    assert points(SOURCE) == dies | LEFT_OUT.keys(), "add what is new to POINTS, or to LEFT_OUT and say why"


@pytest.mark.parametrize(
    ("method", "point"),
    [
        ("start_controller", "start_controller.4"),
        ("direct", "direct.3"),
        ("_find", "end_controller.3"),
        ("kill", "kill.4"),
    ],
)
def test_a_call_that_is_added_to_the_adapter_is_found(method: str, point: str) -> None:
    head, begin, tail = SOURCE.partition(f"    async def {method}(")
    signature, colon, body = tail.partition(":\n")
    changed = f"{head}{begin}{signature}{colon}        await self._blocking(self._see)\n{body}"
    assert points(changed) - points(SOURCE) >= {point}

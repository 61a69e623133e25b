"""What the callers of the mixed load take for wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx2
import pytest

from tests.faults.load import Load

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("answers", "num_wrong"),
    [([404], 1), ([204], 0), ([409, 404], 0), ([503], 0), ([409], 0)],
)
async def test_a_job_that_is_gone_though_nobody_deleted_it_is_told(answers: list[int], num_wrong: int) -> None:
    left: Iterator[int] = iter(answers)
    headers = {"Retry-After": "1"}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(next(left), headers=headers))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        load = Load(client=client, rng=random.Random(0), spec=lambda number: {}, most_jobs=1)
        load.accepted["key-1"] = "job_1"
        while (asked := sum(load.answers.values())) < len(answers):
            await load._delete()
            assert sum(load.answers.values()) <= asked + 1
    assert len(load.wrong) == num_wrong

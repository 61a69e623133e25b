"""What is wrong with a limit of money, by the prices that the settings have and by what the workers get."""

from __future__ import annotations

from typing import Any

import pytest

from service.cost import Prices
from service.settings import Settings
from service.sweep_limits import cost_problem
from service.sweep_specs import read_sweep_spec
from tests.service.scheduled import schedule_document
from tests.service.swept import JOB, sweep_document
from tests.service.test_api_jobs import assert_problem


def problem(prices: tuple[float | None, float | None], **changes: Any) -> str | None:
    spec = read_sweep_spec(sweep_document(limits={"cost": 5}, **changes), has_prices=True)
    found = cost_problem(spec, Prices(*prices, "USD"))
    assert found is None or found.pointer == "/limits/cost"
    return None if found is None else found.detail


def with_resources(**resources: float) -> dict[str, Any]:
    return {"job": {**JOB, "resources": resources}}


@pytest.mark.parametrize(
    ("prices", "changes", "detail"),
    [
        (
            (None, 2.5),
            {},
            "5 can never be reached: the settings charge price_gpu_hour=2.5 USD, and a worker of this job has cpus=1, "
            "gpus=0, which costs nothing; set price_cpu_hour above 0, or use time_s",
        ),
        (
            (0.0, 0.0),
            with_resources(cpus=2, gpus=1),
            "5 can never be reached: the settings charge price_cpu_hour=0 USD, price_gpu_hour=0 USD, and a worker of "
            "this job has cpus=2, gpus=1, which costs nothing; set price_gpu_hour above 0, or use time_s",
        ),
        (
            (1.0, None),
            with_resources(gpus=1),
            "5 cannot be counted: GPUs have no price in the settings (seen: gpus=1); set price_gpu_hour, or use time_s",
        ),
    ],
    ids=["only GPUs have a price", "everything is free", "GPUs have no price"],
)
def test_a_limit_of_money_that_nothing_would_reach_is_refused(
    prices: tuple[float | None, float | None], changes: dict[str, Any], detail: str
) -> None:
    assert problem(prices, **changes) == detail


@pytest.mark.parametrize(
    ("prices", "changes"),
    [
        ((1.0, None), {}),
        ((4e-7, None), {}),
        ((None, 2.5), with_resources(gpus=1)),
        ((0.5, 0.0), with_resources(gpus=1)),
        ((None, 2.5), {"space": {"resources.gpus": {"choice": [0, 1]}}}),
        ((0.5, None), {"space": {"resources.cpus": {"choice": [1, 2]}}}),
    ],
)
def test_it_is_accepted_where_a_price_counts_for_what_some_trial_gets(
    prices: tuple[float | None, float | None], changes: dict[str, Any]
) -> None:
    assert problem(prices, **changes) is None


@pytest.mark.anyio
async def test_both_ways_to_a_sweep_refuse_it(running_app: Any, settings: Settings) -> None:
    sweep = sweep_document(limits={"cost": 5})
    schedule = schedule_document(target={"sweep": sweep})
    async with running_app(settings.model_copy(update={"price_gpu_hour": 2.5})) as client:
        for place, body, prefix in (("/api/v1/sweeps", sweep, ""), ("/api/v1/schedules", schedule, "/target/sweep")):
            (told,) = assert_problem(await client.post(place, json=body), 422, "INVALID")["errors"]
            assert told["pointer"] == f"{prefix}/limits/cost"
            assert "5 can never be reached" in told["detail"]
